-- Reading files of which nobody knows how long they are: never more than a limit, so that a device or a pipe without
-- an end is an error and not the end of the memory.
local err = require "pl.err"
local M = {}

M.recipe, M.text = 2 ^ 20, 64 * 2 ^ 20 -- bytes of a recipe or a script, and of a prompt

local function size(n) return ("%d MB"):format(n / 2 ^ 20) end

--- All of an open file that is called `name`, at most `limit` bytes.
function M.all(f, name, limit)
  local parts, left = {}, limit + 1
  while left > 0 do
    local part, why = f:read(math.min(left, 2 ^ 16))
    if why then error(err.new(("%s: %s"):format(name, why)), 0) end
    if not part then return table.concat(parts) end
    parts[#parts + 1], left = part, left - #part
  end
  error(err.new(("%s: more than %s"):format(name, size(limit))), 0)
end

--- The text of a file ("-": standard input); nil and why if it cannot be opened.
function M.read(path, limit)
  if path == "-" then return M.all(io.stdin, "standard input", limit) end
  local f, why = io.open(path, "rb")
  if not f then return nil, why end
  local ok, text = pcall(M.all, f, path, limit)
  f:close()
  if not ok then error(text, 0) end
  return text
end

--- Lines of standard input, each at most `limit` bytes.
function M.lines(limit)
  local buffer, from, ended = "", 1, false
  return function()
    while true do
      local at = buffer:find("\n", from, true)
      if at then
        local line = buffer:sub(from, at - 1)
        from = at + 1
        return line
      end
      buffer, from = buffer:sub(from), 1
      if ended then
        local line = buffer
        buffer = ""
        return #line > 0 and line or nil
      end
      if #buffer > limit then error(err.new(("standard input: a line of more than %s"):format(size(limit))), 0) end
      local part, why = io.read(2 ^ 16)
      if why then error(err.new("standard input: " .. why), 0) end
      ended = not part
      buffer = buffer .. (part or "")
    end
  end
end

return M
