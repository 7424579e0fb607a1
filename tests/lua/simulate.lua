-- perilune simulate: the figures of a run that can be worked out by hand; every policy on one trace; traces from files;
-- wrong traces and policies are told.
local simulate, policy = require "pl.simulate", require "pl.policy"
local verdicts = dofile "tests/verdicts.lua"
local verdict = verdicts.ok
local function near(a, b) return math.abs(a - b) <= 1e-9 * math.max(1, math.abs(b)) end

-- one request of 10 + 3 tokens: three steps, over 10, 11 and 12 tokens of context
local function by_hand(o)
  local list, i = { { t = 5, input = 10, output = 3 } }, 0
  o.trace = function()
    i = i + 1
    return list[i]
  end
  o.step_s, o.weight_bytes, o.kv_token_bytes, o.bytes_s, o.token_flop, o.pair_flop, o.flop_s = 1, 20, 2, 10, 0, 0, 1
  return simulate.run(o)
end
local f = by_hand { batch = 2 }
verdict(near(f.seconds, 5 + 3 * (1 + 2) + (10 + 11 + 12) * 0.2), "seconds: " .. f.seconds)
verdict(f.steps == 3 and f.output_tokens == 3 and f.prompt_tokens == 10 and f.finished == 1, "one request")
verdict(near(f.ttft_s.mean, 3 + 2) and near(f.itl_s.mean, 3 + 2.3), "times of its tokens")

-- under load: everything is served, and what policies are for shows
local function run(o)
  for k, v in pairs { requests = 1500, rate = 40, seed = 3, batch = 16, cache_tokens = 20000, step_tokens = 512,
    bytes_s = 1e12, flop_s = 1e14 } do if o[k] == nil then o[k] = v end end
  return simulate.run(o)
end
local first
for _, name in ipairs(policy.names) do
  local r = run { policy = name, tenants = 3, prefix_share = 0.5, window = 1 }
  verdict(r.finished == 1500 and r.refused == 0 and r.policy_failures == 0, name .. ": all served")
  verdict(r.page_use.max <= 1 and r.itl_s.p50 > 0 and r.ttft_s.p99 >= r.ttft_s.p50, name .. ": figures")
  first = first or r
end
local again = run { tenants = 3, prefix_share = 0.5, window = 1 }
verdict(again.seconds == first.seconds and again.steps == first.steps, "the same seed, the same run")
local fair, plain = run { tenants = 3, rate = 0, policy = "fair" }, run { tenants = 3, rate = 0 }
verdict(fair.fairness > plain.fairness + 0.05, ("fairness %g, first come %g"):format(fair.fairness, plain.fairness))
local function late(name) return run { rate = 25, deadline = 20, policy = name, bytes_s = 4e11 }.late end
verdict(late "decode_first" > 0, "deadlines pass under overload")
local scattered = { rate = 0, prefix_share = 0.9, prefix_tokens = 1024, input = 1200, prefixes = 40, requests = 600,
  lengths = "fixed", chunk = 512 }
local function cached(name)
  local o = { policy = name }
  for k, v in pairs(scattered) do o[k] = v end
  return run(o).cached_tokens
end
verdict(cached "longest_prefix_first" > 1.2 * cached "decode_first", "longest_prefix_first finds more")
local small = run { cache_tokens = 6400, input = 300, output = 300 }
verdict(small.preempted > 0 and small.finished + small.refused == 1500, "preempted " .. small.preempted)
verdict(simulate.svg(small):find "^<svg .*</svg>\n$" ~= nil, "the drawing")
verdict(run { queue = 10, rate = 0 }.refused > 0, "a full queue refuses")
-- all at once: the engine holds a part of them, which shows in no figure
for _, name in ipairs { "decode_first", "fair", "deadline" } do
  local o = { policy = name, requests = 7000, rate = 0, tenants = 2, input = 20, output = 4, deadline = 15 }
  local some = run(o)
  o.queue = 7000
  local all = run(o)
  local count = all.late + all.finished
  verdict(count == 7000 and some.late + some.finished == count and some.refused == 0, name .. ": none is refused")
  verdict(some.late == all.late and some.late > 0 and near(some.seconds, all.seconds)
    and near(some.ttft_s.mean, all.ttft_s.mean), ("%s: %d and %d late, %g and %g s"):format(name, some.late,
    all.late, some.seconds, all.seconds))
end
local long = run { cache_tokens = 640, input = 300, output = 300 }
verdict(long.too_long > 0 and long.finished > 0 and long.finished + long.too_long == 1500, "longer than the cache")
long = run { input = 1e9, output = 1e9, lengths = "fixed", requests = 3 }
verdict(long.too_long == 3 and long.prompt_tokens == 0, "no memory is taken for what cannot run")

-- files
local path = os.tmpname()
local function file(text, name)
  local h = assert(io.open(name or path, "wb"))
  h:write(text)
  h:close()
end
file '{"t": 0, "input": 70, "output": 2, "tenant": 1}\n\n{"t": 1.5, "input": 5, "output": 1, "prefix": 3}\n'
local trace, tenants = simulate.read(path)
local r = simulate.run { trace = trace, tenants = tenants }
verdict(r.finished == 2 and r.prompt_tokens == 75 and tenants == 2, "a trace from a file")
for text, want in pairs { ["{}"] = ":1:", ['{"t":0,"input":0,"output":1}'] = "input", ["x"] = "want a JSON object",
  ['{"t":1,"input":1,"output":1}\n{"t":0,"input":1,"output":1}'] = ":2: requests are not in order",
  [""] = "no requests" } do
  file(text)
  local ok, e = pcall(simulate.read, path)
  verdict(not ok and tostring(e):find(want, 1, true) and tostring(e):find(path, 1, true), text .. ": " .. tostring(e))
end
local lua = path .. ".lua"
local function with_policy(text)
  file(text, lua)
  return pcall(run, { policy = lua, requests = 100 })
end
io.stderr:write "three messages about failing schedules are expected here\n"
for _, text in ipairs { "return function(s) error 'mine' end", "return function(s) while true do end end",
  "return function(s) for r in s:waiting() do s:prefill(r, 10^6) end end" } do
  local ok, x = with_policy(text)
  verdict(ok and x.finished == 100 and x.policy_failures > 0, text .. ": " .. tostring(x))
end
for text, want in pairs { ["return 1"] = "returns function(s)", ["error 'x'"] = "x", ["return io"] = "io" } do
  local ok, e = with_policy(text)
  verdict(not ok and tostring(e):find(want, 1, true), text .. ": " .. tostring(e))
end
os.remove(path)
os.remove(lua)

verdicts.done()
