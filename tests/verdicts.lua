-- Verdicts that are counted: a test goes on where one fails, and ends with how many did.
local M = {}
local passed, failed = 0, 0

function M.ok(cond, what)
  if cond then passed = passed + 1 else failed = failed + 1; print("FAIL " .. what) end
end

function M.eq(got, want, what)
  M.ok(got == want, ("%s: got %s, want %s"):format(what, tostring(got), tostring(want)))
end

function M.has(text, part, what)
  M.ok(text:find(part, 1, true), ("%s: %s is not in %s"):format(what, part, text))
end

function M.done()
  print(("%d passed, %d failed"):format(passed, failed))
  if failed > 0 then os.exit(1) end
end

return M
