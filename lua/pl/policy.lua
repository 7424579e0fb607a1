-- Scheduling policies: who goes next. A policy reads records that live in C and appends to a plan that C
-- checks; it can be unfair, it cannot corrupt memory. The state `s` is made by pl.engine.
local arg, schema = require "pl.arg", require "pl.schema"
local M = {}

local states = setmetatable({}, { __mode = "k" })
--- Called by pl.engine with each state that it makes.
function M.state(s)
  states[s] = true
  return s
end

--- Every running request gets its token; what is left of the step goes to prompts, first come first served.
function M.decode_first(s)
  for r in s:running() do s:decode(r) end
  for r in s:waiting() do
    if s.tokens.left == 0 or s.pages.free < s:pages_for(r) then break end
    if not s:prefill(r, math.min(r.left, s.tokens.left)) then break end
  end
end

arg.functions("pl.policy", M, { decode_first = { "s", function(s)
  if s == nil or not states[s] then return schema.show(s) .. ", want the state that a schedule is given" end
end } })

--- A function that runs one step's policy: the recipe's, or decode_first where that one fails.
--- counter.failures counts; the first failure is told once.
function M.runner(schedule, box, counter)
  if not schedule or schedule == M.decode_first then return M.decode_first end
  return function(s)
    local ok, e = pcall(box.step, box, schedule, s)
    if ok and s:has_plan() then return end
    if counter.failures == 0 then
      io.stderr:write("perilune: the recipe's schedule failed, decode_first takes its place\n",
        ok and "it planned nothing, though requests wait" or tostring(e), "\n")
    end
    counter.failures = counter.failures + 1
    M.decode_first(s)
  end
end

return M
