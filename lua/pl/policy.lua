-- Scheduling policies: who goes next. A policy reads records that live in C and appends to a plan that C checks; it
-- can be unfair, it cannot corrupt memory. The state `s` is made by pl.engine.
local M = {}

--- Every running request gets its token; what is left of the step goes to prompts, first come first served.
function M.decode_first(s)
  for r in s:running() do s:decode(r) end
  for r in s:waiting() do
    if s.tokens.left == 0 or s.pages.free < s:pages_for(r) then break end
    if not s:prefill(r, math.min(r.left, s.tokens.left)) then break end
  end
end

return M
