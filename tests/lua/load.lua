-- A load on a small cache, with host memory and a disk behind it, while policies are replaced, requests are cancelled
-- and preempted and prefixes are shared:
-- every finished answer is the one that the request gets alone, none is lost, and all pages come back.
local model, bench = require "pl.model", require "pl.bench"
local passed, failed = 0, 0
local function verdict(ok, what)
  if ok then passed = passed + 1 else failed = failed + 1; print("FAIL " .. what) end
end
local seconds = tonumber(os.getenv "PL_SOAK_SECONDS" or 0) -- longer: `make soak`
local seed = tonumber(os.getenv "PL_SEED" or 11)
local tiny = "tests/data/tiny-llama"

local function load(round)
  return { requests = 48, input = 60, output = 25, lengths = "exponential", tenants = 3, prefix_share = 0.5,
    prefixes = 3, prefix_tokens = 80, seed = seed + round }
end

local looping = os.tmpname() .. ".lua"
local f = assert(io.open(looping, "wb"))
f:write "return function(s) pcall(function() while true do end end) while true do end end"
f:close()
local policies = { "fair", "deadline", "longest_prefix_first", looping, "decode_first",
  function(s) for r in s:waiting() do s:prefill(r, 1) end for r in s:running() do s:decode(r) end end,
  function(s) error "mine" end,
  function(s) for r in s:running() do s:preempt(r) end end }

local dir, PAGE = os.tmpname(), 64 * 4 * 2 * 32 * 2 * 2
os.remove(dir)
assert(os.execute(("mkdir '%s'"):format(dir)) == 0)

io.stderr:write "messages about failing schedules are expected here\n"
local started, round, preempted, cancelled, cached, failures, spilled, loaded = os.time(), 0, 0, 0, 0, 0, 0, 0
repeat
  round = round + 1
  local one = model.load(tiny, { batch = 1, context = 512, prefix = false, queue = 100 })
  local alone = bench.run(one, load(round))
  one:close()
  -- eight at a time in twenty pages; what they lose goes to ten more, and then to the disk, where another round may
  -- find it
  local m = model.load(tiny, { batch = 8, cache_bytes = 20 * PAGE, context = 512, queue = 100, tokens = 96,
    host_cache_bytes = 10 * PAGE, disk_cache = dir, disk_cache_bytes = 30 * (PAGE + 4096) })
  local o, n = load(round), 0
  local answers
  function o.on_step(step)
    n = step
    if step % 4 == 0 then m:set_policy(policies[step / 4 % #policies + 1]) end
    if step % 11 == 0 then
      local _, r = next(m.engine.requests)
      if r then
        m.engine:cancel(r)
        cancelled = cancelled + 1
      end
    end
  end
  local g = bench.run(m, o)
  answers = g.answers
  m.engine:settle() -- a page that is being copied is neither free nor idle
  local x = m:metrics()
  verdict(g.requests == 48 and g.refused == 0 and n > 20, "requests " .. g.requests)
  local wrong, whole = 0, 0
  for i, r in pairs(answers) do
    local want = alone.answers[i].ids
    if r.finish == "length" then whole = whole + 1 end
    local right = r.finish == "length" and #r.ids == #want or r.finish == "cancelled"
    for k, id in ipairs(r.ids) do right = right and id == want[k] end
    if not right then wrong = wrong + 1 end
  end
  verdict(wrong == 0, ("seed %d: %d answers are not those of the request alone"):format(seed + round, wrong))
  verdict(whole + (g.finished.cancelled or 0) == 48, "every request has an end")
  verdict(x.pages.free + x.idle_pages == 20 and x.pages.owned == x.idle_pages and x.pages.quarantined == 0,
    "all pages are free, or the prefix cache's own")
  verdict(x.tier_host_damaged + x.tier_disk_damaged + x.tier_disk_errors == 0, "what comes back is what went")
  spilled, loaded = spilled + x.tier_host_stored, loaded + x.tier_host_hits + x.tier_disk_hits
  preempted, cached, failures = preempted + x.preempted, cached + x.cached_tokens, failures + x.policy_failures
  m:close()
until os.time() - started >= seconds and (loaded > 0 or round >= 8) -- what comes back depends on how long copies take
os.remove(looping)
os.remove(dir .. "/perilune.pages")
os.execute(("rmdir '%s'"):format(dir))
local told = ("%d rounds from seed %d: preempted %d, cancelled %d, %d tokens cached, %d steps of failing policies, "
  .. "%d pages copied out, %d back"):format(round, seed, preempted, cancelled, cached, failures, spilled, loaded)
verdict(preempted > 0 and cached > 0 and failures > 0 and cancelled > 0 and spilled > 0 and loaded > 0, told)
print(told)

print(("%d passed, %d failed"):format(passed, failed))
os.exit(failed == 0 and 0 or 1)
