-- Reading files of which nobody knows how long they are: never more than a limit, so that a device or a pipe without
-- an end is an error and not the end of the memory.
local abi, err = require "pl.abi", require "pl.err"
local M = {}

-- bytes of a recipe, of a line of input, of a prompt or a script
M.recipe, M.line, M.text = 2 ^ 20, 4 * 2 ^ 20, 64 * 2 ^ 20

local function size(n) return n < 2 ^ 20 and ("%d bytes"):format(n) or ("%d MB"):format(n / 2 ^ 20) end

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

--- The text of a file, which has to be there.
function M.need(path, limit)
  local text, why = M.read(path, limit)
  if not text then error(err.new(why), 0) end
  return text
end

function M.is_directory(path)
  local f = io.open(path .. "/.")
  if f then f:close() end
  return f ~= nil
end

--- Raises where reading a file could wait for somebody: for one that is read while others wait.
function M.ready(path)
  if abi.C.pl_host_may_wait(path) then error(err.new(path .. ": not a regular file"), 0) end
end

--- A path that a file names, as seen from where the program runs: relative paths begin beside the file.
function M.beside(file, path)
  local dir = file and file:match "^(.*/)"
  if not path or not dir or path:find "^/" then return path end
  return dir .. path
end

--- Write a file: whole, or not at all.
function M.write(path, text) abi.check(abi.C.pl_host_write(path, text, #text, abi.err)) end

--- Lines of an open file that is called `name`, each at most `limit` bytes.
function M.lines_of(f, name, limit)
  local held, at, last = "", 1, false
  return function()
    while true do
      local stop = held:find("\n", at, true)
      if stop then
        local line = held:sub(at, stop - 1)
        at = stop + 1
        return line
      end
      held, at = held:sub(at), 1
      if #held > limit then error(err.new(("%s: a line of more than %s"):format(name, size(limit))), 0) end
      if last then
        if held == "" then return nil end
        local line = held
        held = ""
        return line
      end
      -- as much again as there is, so that a long line is not put together from many parts
      local part, why = f:read(math.max(2 ^ 16, #held))
      if why then error(err.new(("%s: %s"):format(name, why)), 0) end
      if part then held = held .. part else last = true end
    end
  end
end

--- Lines of standard input, each at most `limit` bytes, each as soon as it is there: hence byte by byte, as a longer
--- read would wait for more.
function M.lines(limit)
  return function()
    local parts, chars, n, total = {}, {}, 0, 0
    while true do
      local c = io.read(1)
      if not c and total == 0 then return nil end
      if not c or c == "\n" then break end
      n, total = n + 1, total + 1
      chars[n] = c
      if n == 4096 then parts[#parts + 1], n = table.concat(chars), 0 end
      if total > limit then error(err.new(("standard input: a line of more than %s"):format(size(limit))), 0) end
    end
    parts[#parts + 1] = table.concat(chars, "", 1, n)
    return table.concat(parts)
  end
end

return M
