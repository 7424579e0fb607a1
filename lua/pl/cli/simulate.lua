-- perilune simulate: the scheduler and a policy on a trace, with costs in place of kernels.
local common, simulate = require "pl.cli.common", require "pl.simulate"
local M = { name = "simulate", takes = "", about = "try a policy on a trace of requests; needs no model" }

local rows = { -- option, its name in pl.simulate, help, least, most, unit, whole
  { "--requests", "requests", "Requests of a generated trace.", 1, 1e9, "N", true },
  { "--rate", "rate", "Requests a second (Poisson); 0: all at once.", 0, 1e15, "R" },
  { "--in", "input", "Mean tokens of a prompt.", 1, 1e9, "MEAN" },
  { "--out", "output", "Mean tokens of an answer.", 1, 1e9, "MEAN" },
  { "--tenants", "tenants", "Tenants; the k-th sends 1/k as much as the first.", 1, simulate.MAX_TENANTS, "N", true },
  { "--prefixes", "prefixes", "Common texts that prompts begin with.", 1, 1e9, "N", true },
  { "--prefix-tokens", "prefix_tokens", "Tokens of a common text.", 0, 1e9, "N", true },
  { "--prefix-share", "prefix_share", "Share of the prompts that begin with one.", 0, 1, "P" },
  { "--deadline", "deadline", "Seconds after which a request is given up.", 0, 1e15, "S" },
  { "--seed", "seed", "The same seed gives the same trace.", 0, 2 ^ 53, "S", true },
  { "--batch", "batch", "Requests of one step.", 1, 2 ^ 16, "N", true },
  { "--step-tokens", "step_tokens", "Tokens of one step.", 1, 2 ^ 24, "N", true },
  { "--chunk", "chunk", "Of these, tokens of prompts while requests decode. Default: an eighth, at least 64.", 1,
    2 ^ 24, "N", true },
  { "--queue", "queue", "Requests that may wait; more are refused. Not given, with --rate 0: all wait.", 1, 2 ^ 21, "N",
    true },
  { "--cache-tokens", "cache_tokens", "Tokens that the cache holds.", 1, 2 ^ 32, "N", true },
  { "--page", "page", "Tokens of a page: a multiple of 16.", 16, 1024, "N", true },
  { "--weight-bytes", "weight_bytes", "Bytes read once a step.", 0, 1e18, "N" },
  { "--kv-token-bytes", "kv_token_bytes", "Bytes read per token of context.", 0, 1e18, "N" },
  { "--bytes-s", "bytes_s", "Memory bandwidth.", 1, 1e18, "N" },
  { "--token-flop", "token_flop", "Operations per token.", 0, 1e18, "N" },
  { "--pair-flop", "pair_flop", "Operations per query and key.", 0, 1e18, "N" },
  { "--flop-s", "flop_s", "Operations a second.", 1, 1e18, "N" },
  { "--step-s", "step_s", "Seconds that every step takes besides.", 0, 1e18, "S" },
  { "--price", "price", "Price of the device an hour.", 0, 1e18, "X" },
  { "--window", "window", "Seconds over which shares of tenants are compared.", 0.001, 1e18, "S" },
}

function M.options(p)
  p:option("--trace", "Requests from a file: a JSON object a line, with t, input, output; also tenant, prefix,"
    .. " prefix_tokens, deadline, priority."):argname "FILE"
  p:option("--policy", "decode_first, fair, deadline, longest_prefix_first, or a file that returns function(s).")
    :default "decode_first":argname "NAME|FILE"
  p:option("--lengths", "Distribution of lengths. Default: exponential.")
    :choices { "exponential", "lognormal", "uniform", "fixed" }
  p:flag("--no-prefix-cache", "Do not keep pages for prompts that begin alike.")
  for _, r in ipairs(rows) do
    local value = simulate.defaults[r[2]] or simulate.costs[r[2]]
    p:option(r[1], r[3] .. (value and (" Default: %g."):format(value) or "")):target(r[2])
      :convert((r[7] and common.whole or common.number)(r[4], r[5])):argname(r[6])
  end
  p:option("--svg", "Draw requests and cache over time."):argname "FILE"
  common.json(p)
end

local prefix = { { "--prefixes", "prefixes" }, { "--prefix-tokens", "prefix_tokens" } }
local made = { "lengths", "requests", "rate", { "--in", "input" }, { "--out", "output" }, "tenants", "deadline", "seed",
  "prefix_share", unpack(prefix) }

function M.run(o)
  common.only(o, not o.trace, "makes a trace, and one is given", made)
  common.only(o, (o.prefix_share or 0) > 0, "wants --prefix-share above 0", prefix)
  common.only(o, o.trace or (o.tenants or 1) > 1, "wants --tenants above 1", { "window" })
  local file, json = require "pl.file", require "pl.json"
  local run = { lengths = o.lengths, policy = o.policy, prefix_cache = not o.no_prefix_cache }
  for _, r in ipairs(rows) do run[r[2]] = o[r[2]] end
  if (run.page or 64) % 16 ~= 0 then
    require("pl.cli").usage(("--page: '%d', want a multiple of 16"):format(run.page))
  end
  common.will_write(o.svg)
  if o.trace then run.trace, run.tenants = simulate.read(o.trace) end
  local f = simulate.run(run)
  if o.svg then file.write(o.svg, simulate.svg(f)) end
  f.samples = nil
  print(o.json and json.encode(f) or simulate.text(f))
  return 0
end

return M
