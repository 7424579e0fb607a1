-- The REPL. At a terminal: a prompt, history, completion, lines that go on until the chunk is whole; Ctrl-C
-- ends a generation, not the process. From a pipe: lines are read and run without a prompt. An error never
-- ends it. `perilune FILE [ARG...]` runs a file with the same environment.
local abi, err, files, line = require "pl.abi", require "pl.err", require "pl.file", require "pl.line"
local C = abi.C
local M = {}
-- As they are when it starts: a session may take them away.
local loadstring, pcall, select, setfenv, tostring, type, unpack, xpcall =
  loadstring, pcall, select, setfenv, tostring, type, unpack, xpcall

local help = setmetatable({}, { __tostring = function()
  return [[
m = pl.load "PATH"             a GGUF file or a Hugging Face directory
m:generate { prompt = "..." }  also max_tokens, temperature, top_p, seed, ...
c = m:talk { system = "..." }; c:say "Hello"     a conversation
m:score "TEXT"   m:logits "TEXT"   m:embed "TEXT"   m:plan()   m:tokenizer():encode "TEXT"   m:close()
op.add(pl.tensor { { 1, 2 } }, pl.tensor { { 3, 4 } })   any op of a recipe, on real tensors
Any other Lua too. TAB completes, Ctrl-C stops a generation, Ctrl-D or `quit` leaves.]]
end })

-- The user's environment: Lua's own globals, pl, and short names.
local function environment()
  local pl = require "pl"
  local env = { pl = pl, op = pl.op, help = help }
  return setmetatable(env, { __index = function(_, k)
    if k == "nn" then return pl.nn end
    return _G[k]
  end })
end

-- How a value is shown: strings quoted, tables one level deep.
local function show(v)
  if type(v) == "string" then return ("%q"):format(v):gsub("\\\n", "\\n") end
  if type(v) ~= "table" or (getmetatable(v) or {}).__tostring then return tostring(v) end
  if getmetatable(v) == false then return err.is(v) and tostring(v) or "table" end
  local parts, n = {}, 0
  for i, x in ipairs(v) do
    n = i
    if i > 16 then
      parts[#parts + 1] = ("... %d"):format(#v)
      break
    end
    parts[i] = type(x) == "table" and "{...}" or tostring(show(x))
  end
  local keys = {}
  for k in pairs(v) do if type(k) ~= "number" or k % 1 ~= 0 or k < 1 or k > #v then
    keys[#keys + 1] = k end end
  table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
  for _, k in ipairs(keys) do
    n = n + 1
    if n > 32 then
      parts[#parts + 1] = "..."
      break
    end
    parts[#parts + 1] = ("%s = %s"):format(tostring(k), type(v[k]) == "table" and not (getmetatable(v[k])
      or {}).__tostring and "{...}" or tostring(show(v[k])))
  end
  return "{ " .. table.concat(parts, ", ") .. " }"
end

local function print_all(n, ...)
  local out = {}
  for i = 1, n do
    local ok, s = pcall(show, (select(i, ...)))
    out[i] = ok and s or "?"
  end
  io.write(table.concat(out, "\t"), "\n")
  io.flush()
end

-- Does this text need more lines?
local function unfinished(msg)
  return msg:find "near '<eof>'$" ~= nil
end

local count = 0
-- Compile as an expression, as statements with an expression after the last semicolon, or as statements.
-- Returns a function, or nil and a message.
local function compile(text, env)
  count = count + 1
  local name = "stdin" .. count
  local body = text:gsub("^%s*=", "")
  local f, why = loadstring("return " .. body, "=" .. name)
  local before, last = body:match "^(.*;)%s*([^;\n]+)$"
  if not f and before then f = loadstring(before .. " return " .. last, "=" .. name) end
  local msg
  if not f then f, msg = loadstring(text, "=" .. name) end
  if not f then
    count = count - 1
    return nil, unfinished(why) and why or msg
  end
  err.register(name, text, true)
  return setfenv(f, env)
end

local function handler(e)
  if type(e) == "table" then return e end
  return err.from(e)
end

local function complain(text) io.stderr:write(text, "\n") io.stderr:flush() end

-- f(...), whose own error is told and goes no further.
local function safely(f, ...)
  local ok, what = pcall(f, ...)
  if not ok then complain(err.text(what)) end
  return ok and what or nil
end

-- Run a compiled chunk and show what it returns; an error is shown too. Returns true unless it failed.
local function run(f)
  local function done(ok, ...)
    if ok then
      local n = select("#", ...)
      if n > 0 then print_all(n, ...) end
      return true
    end
    complain(err.text((...)))
    return false
  end
  C.pl_host_interrupted(true)
  jit.off(f, true) -- a compiled loop ignores the hook
  debug.sethook(function()
    local model = package.loaded["pl.model"]
    if not (model and model.generating) and C.pl_host_interrupted(true) then error("interrupted", 0) end
  end, "", 10000)
  local function call() return done(xpcall(f, handler)) end
  local ok = call()
  debug.sethook()
  require("pl.trace").set_layer(nil) -- an error or a break left it where it was
  return ok
end

-- Completion ------------------------------------------------------------------------------------------------

local model_words = { "generate", "talk", "logits", "score", "ids", "plan", "tokenizer", "tree", "kv", "close",
  "embed", "pooling", "submit", "step", "set_policy", "metrics", "incidents", "prof" }
local tensor_words = { "slice", "reshape", "split", "heads", "flat", "values", "at", "to", "type", "size",
  "describe", "close" }

-- Words that can be completed: globals of the session, fields of pl, ops, methods of what its variables hold.
local function words(env)
  local set = {}
  for k, v in pairs(env) do
    set[k] = true
    local methods = type(v) == "cdata" and tensor_words or type(v) == "table" and rawget(v, "fitted")
      and model_words
    for _, m in ipairs(methods or {}) do set[k .. ":" .. m] = true end
  end
  for _, k in ipairs(err.names(_G)) do set[k] = true end
  for _, k in ipairs { "load", "tensor", "zeros", "scope", "kv", "device", "version", "dims", "weight",
    "each_layer", "const", "recipe", "pool" } do
    set["pl." .. k] = true
  end
  for _, o in ipairs(require("pl.op").all()) do set["op." .. o.name], set["pl.op." .. o.name] = true, true end
  for _, lib in ipairs { "string", "table", "math", "io", "os" } do
    for k in pairs(_G[lib]) do set[lib .. "." .. k] = true end
  end
  local list = {}
  for k in pairs(set) do if type(k) == "string" then list[#list + 1] = k end end
  table.sort(list)
  return table.concat(list, "\n")
end

-- Input -----------------------------------------------------------------------------------------------------

-- "quit" or "help", where a chunk begins with such a line and the session has no variable of that name.
local function asked(text, env)
  local what, word = line.asks(text)
  if what and word and (rawget(env, word) or help) ~= help then return nil end
  if what == "help" then print(tostring(help)) end
  return what
end

local function interactive(env)
  local keep = line.history "history"
  print(("perilune %s   %s   help tells more, Ctrl-D or quit leaves"):format(abi.version(),
    require("pl.dev").get():describe()))
  local text
  while true do
    local more, why = line.read(text and ">> " or "> ", safely(words, env) or "")
    if not more and not why then break end
    local what = more and not text and asked(more, env)
    if what == "quit" then break end
    if what then more = "" end
    text = more and (text and text .. "\n" .. more or more) or "" -- Ctrl-C: what was begun is dropped
    if text:find "%S" then
      local f, msg = compile(text, env)
      if f then
        text = nil
        safely(run, f)
      elseif not unfinished(msg) or more == "" then
        text = nil
        complain((msg:gsub("^[^:]*:(%d+): ", "line %1: ")))
      end
    else
      text = nil
    end
  end
  keep()
  return 0
end

local function piped(env)
  local text
  for more in files.lines(files.line) do
    local what = not text and asked(more, env)
    if what == "quit" then return 0 end
    text = text and text .. "\n" .. more or not what and more or ""
    local f, msg = compile(text, env)
    if f then
      text = nil
      safely(run, f)
    elseif not unfinished(msg) then
      text = nil
      complain((msg:gsub("^[^:]*:(%d+): ", "line %1: ")))
    end
  end
  if text and text:find "%S" then io.stderr:write("the last chunk is not finished\n") end
  return 0
end

local function file(args, env)
  local path = args[1]
  local text = files.need(path, files.text):gsub("^#![^\n]*", "")
  local chunk, msg = loadstring(text, "@" .. path)
  if not chunk then error(err.new(msg), 0) end
  err.register(path, text, true)
  _G.arg = { [0] = path, unpack(args, 2) }
  setfenv(chunk, env)
  local ok, e = xpcall(function() return chunk(unpack(args, 2)) end, handler)
  if ok then return 0 end
  complain(err.text(e))
  return 1
end

function M.main(args)
  local env = environment()
  if args[1] == "-e" then
    if not args[2] then require("pl.cli").usage "-e wants a text" end
    if args[3] then require("pl.cli").usage "-e TEXT takes no arguments" end
    if asked(args[2], env) then return 0 end
    local f, msg = compile(args[2], env)
    if not f then error(err.new(msg), 0) end
    return run(f) and 0 or 1
  end
  if args[1] then return file(args, env) end
  return (C.pl_host_is_tty(0) and interactive or piped)(env)
end

return M
