-- perilune simulate: the scheduler and a policy on a trace, with costs in place of kernels.
local common = require "pl.cli.common"
local M = { name = "simulate", takes = "", about = "try a policy on a trace of requests; needs no model" }

local rows = { -- option, its name in pl.simulate, help, least, unit, whole
  { "--requests", "requests", "Requests of a generated trace.", 1, "N", true },
  { "--rate", "rate", "Requests a second (Poisson); 0: all at once.", 0, "R" },
  { "--in", "input", "Mean tokens of a prompt.", 1, "MEAN" },
  { "--out", "output", "Mean tokens of an answer.", 1, "MEAN" },
  { "--tenants", "tenants", "Tenants; the k-th sends 1/k as much as the first.", 1, "N", true },
  { "--prefixes", "prefixes", "Common texts that prompts begin with.", 1, "N", true },
  { "--prefix-tokens", "prefix_tokens", "Tokens of a common text.", 0, "N", true },
  { "--prefix-share", "prefix_share", "Share of the prompts that begin with one.", 0, "P" },
  { "--deadline", "deadline", "Seconds after which a request is given up.", 0, "S" },
  { "--seed", "seed", "The same seed gives the same trace.", 0, "S", true },
  { "--batch", "batch", "Requests of one step.", 1, "N", true },
  { "--step-tokens", "step_tokens", "Tokens of one step.", 1, "N", true },
  { "--queue", "queue", "Requests that may wait; more are refused.", 1, "N", true },
  { "--cache-tokens", "cache_tokens", "Tokens that the cache holds.", 1, "N", true },
  { "--page", "page", "Tokens of a page.", 16, "N", true },
  { "--weight-bytes", "weight_bytes", "Bytes read once a step.", 0, "N" },
  { "--kv-token-bytes", "kv_token_bytes", "Bytes read per token of context.", 0, "N" },
  { "--bytes-s", "bytes_s", "Memory bandwidth.", 1, "N" },
  { "--token-flop", "token_flop", "Operations per token.", 0, "N" },
  { "--pair-flop", "pair_flop", "Operations per query and key.", 0, "N" },
  { "--flop-s", "flop_s", "Operations a second.", 1, "N" },
  { "--step-s", "step_s", "Seconds that every step takes besides.", 0, "S" },
  { "--price", "price", "Price of the device an hour.", 0, "X" },
  { "--window", "window", "Seconds over which shares of tenants are compared.", 0.001, "S" },
}

function M.options(p)
  p:option("--trace", "Requests from a file: a JSON object a line, with t, input, output; also tenant, prefix,"
    .. " prefix_tokens, deadline, priority."):argname "FILE"
  p:option("--policy", "decode_first, fair, deadline, longest_prefix_first, or a file that returns function(s).")
    :default "decode_first":argname "NAME|FILE"
  p:option("--lengths", "Distribution of lengths."):choices { "exponential", "lognormal", "uniform", "fixed" }
    :default "exponential"
  p:flag("--no-prefix-cache", "Do not keep pages for prompts that begin alike.")
  local simulate = require "pl.simulate"
  for _, r in ipairs(rows) do
    local value = simulate.defaults[r[2]] or simulate.costs[r[2]]
    p:option(r[1], r[3] .. (value and (" Default: %g."):format(value) or "")):target(r[2])
      :convert(r[6] and common.whole(r[4]) or common.number(r[4], 1e18)):argname(r[5])
  end
  p:option("--svg", "Draw requests and cache over time."):argname "FILE"
  common.json(p)
end

function M.run(o)
  local simulate, err, json = require "pl.simulate", require "pl.err", require "pl.json"
  local run = { lengths = o.lengths, policy = o.policy, prefix_cache = not o.no_prefix_cache }
  for _, r in ipairs(rows) do run[r[2]] = o[r[2]] end
  if (run.page or 64) % 16 ~= 0 then require("pl.cli").usage "--page: want a multiple of 16" end
  if o.trace then run.trace, run.tenants = simulate.read(o.trace) end
  local f = simulate.run(run)
  if o.svg then
    local file, why = io.open(o.svg, "wb")
    if not file then error(err.new(why), 0) end
    local ok, what = file:write(simulate.svg(f))
    file:close()
    if not ok then error(err.new(o.svg .. ": " .. what), 0) end
  end
  f.samples = nil
  print(o.json and json.encode(f) or simulate.text(f))
  return 0
end

return M
