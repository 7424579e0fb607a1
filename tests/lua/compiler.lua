-- What LuaJIT compiles does what the interpreter does, where a version of it is known not to.
local verdicts = dofile "tests/verdicts.lua"
local verdict = verdicts.ok

-- The value that pairs gave, after its field was cleared: the call takes it out of its register, so that a compiler
-- that joins loads to their use reads the field again, and finds nil.
local function drain(t)
  local sum, n, log = 0, 0, math.log
  for k, v in pairs(t) do
    t[k] = nil
    local d = k.x - v
    n = n + log(d + 100)
    if #k.ids > 1 then n = n + 1 end
    sum = sum + d
  end
  return sum
end
local wrong = 0
for _ = 1, 300 do
  local t, want = {}, 0
  for i = 1, 20 do
    t[{ x = i * 2, ids = { 1, 2, 3 } }] = i + 0.5
    want = want + i - 0.5
  end
  if drain(t) ~= want then wrong = wrong + 1 end
end
verdict(wrong == 0, ("%d of 300 sums over a table that is emptied meanwhile are wrong"):format(wrong))

verdicts.done()
