-- A load on a small cache, with host memory and a disk behind it, while policies are replaced, requests are cancelled
-- and preempted, prefixes are shared, and bugs of page ownership are made to happen: every finished answer is the one
-- that the request gets alone, whom a fault strikes gives nothing wrong before it ends, none is lost, and all pages
-- come back.
local model, bench, ffi = require "pl.model", require "pl.bench", require "ffi"
ffi.cdef [[ // tests/host.c
void pl_test_fault(pl_kv *kv, int32_t what, int64_t owner, int32_t index);
bool pl_test_struck(const pl_kv *kv); ]]
-- PL_FAULT_* of core/fault.h: a page freed under its owner, a block table off by one, a page freed a second time, a bit
-- of a tag, a page freed while it is copied out or in, a slot of a tier that returns another's bytes
local TAG_FLIP, faults = 6, { 1, 2, 5, 6, 8, 9, 10 }
local verdicts = dofile "tests/verdicts.lua"
local verdict = verdicts.ok
local seconds = tonumber(os.getenv "PL_SOAK_SECONDS" or 0) -- longer: `make soak`
local seed = tonumber(os.getenv "PL_SEED" or 11)
local tiny = "tests/data/tiny-llama"

-- Eight at a time in twenty pages, and every third round sixty-four in a hundred and ten; what they lose goes to
-- half as many more in host memory, and then to the disk, where another round may find it.
local function shape(round)
  if round % 3 == 2 then return { requests = 160, batch = 64, pages = 110 } end
  return { requests = 48, batch = 8, pages = 20 }
end
local function load(round)
  return { requests = shape(round).requests, input = 60, output = 25, lengths = "exponential", tenants = 3,
    prefix_share = 0.5, prefixes = 3, prefix_tokens = 80, seed = seed + round }
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
local struck, victims = 0, 0
local started, round, preempted, cancelled, cached, failures, spilled, loaded = os.time(), 0, 0, 0, 0, 0, 0, 0
repeat
  round = round + 1
  local one = model.load(tiny, { batch = 1, context = 512, prefix = false, queue = 200 })
  local alone = bench.run(one, load(round))
  one:close()
  local size = shape(round)
  local m = model.load(tiny, { batch = size.batch, cache_bytes = size.pages * PAGE, context = 512, queue = 200,
    tokens = 96, host_cache_bytes = size.pages / 2 * PAGE, disk_cache = dir,
    disk_cache_bytes = 30 * (PAGE + 4096) })
  local o, n = load(round), 0
  local answers
  local kv, hit, flips, what, aim = m.engine.kv, 0, 0, 0, seed + round
  local function disarm()
    if ffi.C.pl_test_struck(kv) then hit, flips = hit + 1, flips + (what == TAG_FLIP and 1 or 0) end
    ffi.C.pl_test_fault(kv, 0, 0, 0)
  end
  function o.on_step(step)
    n = step
    if step % 4 == 0 then m:set_policy(policies[step / 4 % #policies + 1]) end
    if step % 7 == 3 then
      disarm()
      for id in pairs(m.engine.requests) do
        aim = (aim * 48271) % 2147483647
        if aim % 3 == 0 then
          what = faults[aim % #faults + 1]
          ffi.C.pl_test_fault(kv, what, id, aim % 2)
          break
        end
      end
    end
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
  disarm()
  m.engine:settle() -- a page that is being copied is neither free nor idle
  local x = m:metrics()
  verdict(g.requests == size.requests and g.refused == 0 and n > 20, "requests " .. g.requests)
  local wrong, whole, aborted = 0, 0, 0
  for i, r in pairs(answers) do
    local want = alone.answers[i].ids
    if r.finish == "length" then whole = whole + 1 end
    if r.finish == "integrity" then aborted = aborted + 1 end
    local right = r.finish == "length" and #r.ids == #want or r.finish == "cancelled" or r.finish == "integrity"
    for k, id in ipairs(r.ids) do right = right and id == want[k] end
    if not right then wrong = wrong + 1 end
  end
  verdict(wrong == 0, ("seed %d: %d answers are not those of the request alone"):format(seed + round, wrong))
  verdict(whole + aborted + (g.finished.cancelled or 0) == size.requests, "every request has an end")
  verdict(aborted == 0 or hit > 0, "nobody is aborted but by a fault")
  -- a page whose tag was flipped is in nobody's hands until it was looked at
  verdict(x.pages.free + x.idle_pages + x.pages.quarantined == size.pages and x.pages.owned == x.idle_pages
    and x.pages.quarantined <= flips, "all pages are free, or the prefix cache's own")
  verdict(x.tier_host_damaged + x.tier_disk_damaged <= hit and x.tier_disk_errors == 0, "what comes back is what went")
  struck, victims = struck + hit, victims + aborted
  spilled, loaded = spilled + x.tier_host_stored, loaded + x.tier_host_hits + x.tier_disk_hits
  preempted, cached, failures = preempted + x.preempted, cached + x.cached_tokens, failures + x.policy_failures
  m:close()
until os.time() - started >= seconds and (loaded > 0 or round >= 8) -- what comes back depends on how long copies take
os.remove(looping)
os.remove(dir .. "/perilune.pages")
os.execute(("rmdir '%s'"):format(dir))
local told = ("%d rounds from seed %d: preempted %d, cancelled %d, %d tokens cached, %d steps of failing policies, "
  .. "%d pages copied out, %d back, %d faults, %d requests aborted"):format(round, seed, preempted, cancelled, cached,
  failures, spilled, loaded, struck, victims)
verdict(preempted > 0 and cached > 0 and failures > 0 and cancelled > 0 and spilled > 0 and loaded > 0
  and struck > 0 and victims > 0, told)
print(told)

verdicts.done()
