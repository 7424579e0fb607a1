-- A line that is typed at a terminal: edited, completed, and found again by those of a session before.
local abi = require "pl.abi"
local C = abi.C
local M = {}

--- The line; nil at the end (Ctrl-D); nil and "interrupted" for Ctrl-C, which is then taken. words: what TAB
--- completes, with "\n" between.
function M.read(prompt, words)
  C.pl_host_interrupted(true) -- one that came too late for what ran before
  local p = C.pl_line_read(prompt, words or "")
  if p == nil then
    local why = C.pl_host_interrupted(true) and "interrupted" or nil
    io.write "\n"
    return nil, why
  end
  local line = abi.string(p)
  C.pl_line_free(p)
  return line
end

--- What a line asks of a session and not of Lua, as people are used to: "quit", "help" or nil; and the name that it
--- would be in Lua, if it could be one.
local asks = { quit = "quit", exit = "quit", help = "help" }
function M.asks(text)
  local word = text:match "^%s*(%a+)%s*$" or text:match "^%s*(%a+)%s*%(%s*%)%s*$"
  return asks[word or text:match "^%s*[:/](%a+)%s*$"], word
end

--- The lines of earlier sessions, from `name` in the user's directory of states; returns a function that keeps those of
--- this one.
function M.history(name)
  local home = os.getenv "HOME"
  local state = os.getenv "XDG_STATE_HOME" or home and home .. "/.local/state"
  if not state then return function() end end
  local dir = state .. "/perilune"
  local path = dir .. "/" .. name
  C.pl_line_history(path, false)
  return function()
    if C.pl_line_history(path, true) == 0 then return end
    os.execute("mkdir -p '" .. dir:gsub("'", "'\\''") .. "' 2>/dev/null")
    C.pl_line_history(path, true)
  end
end

return M
