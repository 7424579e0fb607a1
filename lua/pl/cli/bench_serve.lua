-- perilune bench serve: a load on the engine of a model, in this process.
local common = require "pl.cli.common"
local M = { name = "serve", about = "a load on the engine: throughput and latencies" }

local rows = {
  { "--requests", "requests", "Requests.", 1, "N", true },
  { "--rate", "rate", "Requests a second (Poisson); 0: all at once, or as --concurrency allows.", 0, "R" },
  { "--concurrency", "concurrency", "At most so many requests at a time; 0: no limit.", 0, "N", true },
  { "--in", "input", "Mean tokens of a prompt.", 1, "MEAN" },
  { "--out", "output", "Mean tokens of an answer.", 1, "MEAN" },
  { "--tenants", "tenants", "Tenants; the k-th sends 1/k as much as the first.", 1, "N", true },
  { "--prefixes", "prefixes", "Common texts that prompts begin with.", 1, "N", true },
  { "--prefix-tokens", "prefix_tokens", "Tokens of a common text.", 0, "N", true },
  { "--prefix-share", "prefix_share", "Share of the prompts that begin with one.", 0, "P" },
  { "--seed", "seed", "The same seed gives the same requests.", 0, "S", true },
}

function M.options(p)
  common.compute(p)
  common.tiers(p)
  local bench = require "pl.bench"
  for _, r in ipairs(rows) do
    p:option(r[1], ("%s Default: %g."):format(r[3], bench.defaults[r[2]])):target(r[2])
      :convert(r[6] and common.whole(r[4]) or common.number(r[4], 1e9)):argname(r[5])
  end
  p:option("--lengths", "Distribution of lengths."):choices { "exponential", "lognormal", "uniform", "fixed" }
    :default "fixed"
  p:option("--policy", "decode_first, fair, deadline, longest_prefix_first, or a file. Default: the recipe's.")
    :argname "NAME|FILE"
  p:option("--batch", "Requests of one step."):convert(common.whole(1)):argname "N"
  p:option("--step-tokens", "Tokens of one step."):convert(common.whole(1)):argname "N"
  p:option("--context", "Tokens of cache per request of the batch."):convert(common.whole(1)):argname "N"
  p:option("--cache-bytes", "Bytes of the whole cache, in place of that."):convert(common.whole(1)):argname "N"
  p:option("--queue", "Requests that may wait; more are refused. Default: all."):convert(common.whole(0)):argname "N"
  p:flag("--no-prefix-cache", "Do not keep pages for prompts that begin alike.")
  common.prof(p)
  common.json(p)
end

function M.run(o)
  local bench = require "pl.bench"
  local run = { lengths = o.lengths }
  for _, r in ipairs(rows) do run[r[2]] = o[r[2]] end
  local load = common.load_options(o, { batch = o.batch, tokens = o.step_tokens, context = o.context,
    cache_bytes = o.cache_bytes, queue = o.queue or o.requests or bench.defaults.requests,
    prefix = not o.no_prefix_cache })
  local m = require("pl.model").load(o.model, load)
  if o.policy then m:set_policy(o.policy) end
  common.start_prof(o, m)
  local f = bench.run(m, run)
  f.answers = nil
  f.kv, f.act, f.path, f.threads = m.engine.cache, m.pool.act, m.dev:path(), m.dev:threads()
  print(o.json and require("pl.json").encode(f) or bench.text(f))
  common.end_prof(o, m)
  m:close()
  return 0
end

return M
