-- Where recipes run: no io, os, ffi, debug, jit or bytecode; bounded library functions; limits on
-- instructions, time and memory that pcall, xpcall and coroutines cannot swallow (the limit error is sticky:
-- they raise it again). A compiled loop would ignore the count hook, so that recipe code is never compiled.
local err = require "pl.err"
local jit = require "jit"
local string, table, math, coroutine = string, table, math, coroutine
local pcall, xpcall, error, select, type, tostring = pcall, xpcall, error, select, type, tostring
local bounded = require "pl.host.bounded"
local limit_memory = require "pl.host.limit" -- a cap on the state's allocator: a hook would come too late
local M = {}

M.limits = { instructions = 3e7, seconds = 10, megabytes = 256 } -- of one call
local TICK = 100         -- instructions between two looks at the limits
local MAX_TEXT = 2 ^ 20  -- bytes of one string that a library function makes
local MAX_STEPS = 2 ^ 27 -- steps that a pattern may take at worst
local MAX_NESTED = 8     -- coroutines and callbacks of library functions within each other: C stack

local function refuse(what, why) err.raise(("%s: %s"):format(what, why)) end

-- Functions that call f(...) one level deeper; `attempt` returns as pcall does.
local function nesting()
  local depth = 0
  local function out(...)
    depth = depth - 1
    return ...
  end
  local function attempt(call, f, ...)
    if depth == MAX_NESTED then
      err.raise(("coroutines or callbacks nested more than %d deep"):format(MAX_NESTED))
    end
    depth = depth + 1
    return out(call(f, ...))
  end
  local function results(ok, ...)
    if not ok then error((...), 0) end
    return ...
  end
  return attempt, function(f, ...) return results(attempt(pcall, f, ...)) end
end

-- The worst that matching can cost: one loop over the subject per quantifier, and one for the start. Real
-- patterns of recipes are far below the limit; `.-.-.-x` on a long text is above it.
local function check_pattern(what, s, pattern)
  if type(s) == "number" then s = tostring(s) end
  if type(s) ~= "string" then refuse(what, ("subject is a %s, want a string"):format(type(s))) end
  if type(pattern) == "number" then pattern = tostring(pattern) end
  if type(pattern) ~= "string" then refuse(what, ("pattern is a %s, want a string"):format(type(pattern))) end
  local loops = string.sub(pattern, 1, 1) == "^" and 0 or 1
  for q in string.gmatch(pattern, "%%?.") do
    if q == "*" or q == "+" or q == "-" or q == "?" or q == "%b" or q == "%f" or string.find(q, "^%%%d") then
      loops = loops + 1
    end
  end
  if (#s + 1) ^ loops * (#pattern + 1) > MAX_STEPS then
    refuse(what, ("a pattern with %d loops on %d bytes could run for too long"):format(loops, #s))
  end
  return s, pattern
end

local function bounded_string(nested)
  local s = {}
  for _, name in ipairs { "byte", "char", "len", "lower", "upper", "reverse", "sub" } do
    s[name] = string[name]
  end
  function s.rep(text, n, sep)
    text, sep = tostring(text), sep and tostring(sep) or ""
    if type(n) ~= "number" then refuse("rep", "count is a " .. type(n) .. ", want a number") end
    if (#text + #sep) * n > MAX_TEXT then
      refuse("rep", ("%d bytes %g times, want at most %d bytes in all"):format(#text + #sep, n, MAX_TEXT))
    end
    if n > MAX_TEXT then return "" end
    return string.rep(text, n, sep)
  end
  function s.find(text, pattern, init, plain)
    if plain then
      text, pattern = tostring(text), tostring(pattern)
      if #text * #pattern > MAX_STEPS then refuse("find", "the texts are too long") end
    else
      text, pattern = check_pattern("find", text, pattern)
    end
    return string.find(text, pattern, init, plain)
  end
  function s.match(text, pattern, init)
    text, pattern = check_pattern("match", text, pattern)
    return string.match(text, pattern, init)
  end
  function s.gmatch(text, pattern)
    text, pattern = check_pattern("gmatch", text, pattern)
    return string.gmatch(text, pattern)
  end
  function s.gsub(text, pattern, with, n)
    text, pattern = check_pattern("gsub", text, pattern)
    local made = 0
    local function count(v)
      if type(v) == "string" then
        made = made + #v
        if made > MAX_TEXT then refuse("gsub", "the result is too long") end
      end
      return v
    end
    if type(with) == "table" then
      local t = with
      with = function(k) return count(t[k]) end
    elseif type(with) == "function" then
      local f = with
      with = function(...) return count((f(...))) end
    else
      with = tostring(with)
      local copies = select(2, string.gsub(with, "%%%d", ""))
      if (#text + 1) * (#with + copies * #text) > 16 * MAX_TEXT then
        refuse("gsub", "the result could be too long")
      end
    end
    if type(with) == "string" then return string.gsub(text, pattern, with, n) end
    return nested(string.gsub, text, pattern, with, n)
  end
  function s.format(form, ...)
    form = tostring(form)
    local args, n = { ... }, select("#", ...)
    local total = #form
    for i = 1, n do
      if type(args[i]) == "table" then args[i] = tostring(args[i]) end
      if type(args[i]) == "string" then total = total + #args[i] end
    end
    if total > MAX_TEXT / 4 then refuse("format", "the texts are too long") end
    return string.format(form, unpack(args, 1, n))
  end
  return s
end

local function bounded_table(nested)
  local t = { maxn = table.maxn }
  local function list(what, l)
    if type(l) ~= "table" then refuse(what, ("a %s, want a table"):format(type(l))) end
    return #l
  end
  function t.insert(l, ...)
    local n, k = list("insert", l), select("#", ...)
    if k == 1 then l[n + 1] = ... return end
    local at, v = ...
    if k ~= 2 or type(at) ~= "number" or at < 1 or at > n + 1 then
      refuse("insert", ("position %s of %d"):format(tostring(at), n))
    end
    table.insert(l, at, v)
  end
  function t.remove(l, at)
    local n = list("remove", l)
    if at ~= nil and (type(at) ~= "number" or at < 1 or at > n + 1) then
      refuse("remove", ("position %s of %d"):format(tostring(at), n))
    end
    return table.remove(l, at or n)
  end
  function t.sort(l, less)
    if list("sort", l) > 1e5 then refuse("sort", ("%d entries, want at most 100000"):format(#l)) end
    nested(table.sort, l, less)
  end
  function t.concat(l, sep, from, to)
    local n = list("concat", l)
    sep = sep == nil and "" or tostring(sep)
    from, to = from or 1, to or n
    local total = 0
    for i = from, to do
      local v = l[i]
      if type(v) ~= "string" and type(v) ~= "number" then
        refuse("concat", ("entry %d is a %s"):format(i, type(v)))
      end
      total = total + #tostring(v) + #sep
      if total > MAX_TEXT then refuse("concat", "the result is too long") end
    end
    return table.concat(l, sep, from, to)
  end
  return t
end

-- A table that shows another one and cannot be changed.
local function readonly(what, t)
  return setmetatable({}, { __metatable = false,
    __index = function(_, k)
      local v = t[k]
      if v == nil then err.unknown(what, k, err.names(t)) end
      return v
    end,
    __newindex = function(_, k) refuse(what, ("'%s' cannot be set from a recipe"):format(tostring(k))) end })
end

local Box = {}
Box.__index = Box

function Box:out_of_memory(file, line)
  limit_memory(nil)
  self.dead = self.dead
    or err.new(("the %s used more than %g MB"):format(self.what, self.megabytes), nil, file, line)
end

-- After a call that may have been stopped by a limit: raise it again, whatever the recipe does with errors.
local function settle(box, ok, ...)
  if not ok and (...) == "not enough memory" then box:out_of_memory(err.place()) end
  if box.dead then error(box.dead, 0) end
  return ok, ...
end

local forbidden = { io = 1, os = 1, ffi = 1, debug = 1, jit = 1, package = 1, load = 1, loadstring = 1,
  loadfile = 1,
  dofile = 1, setfenv = 1, getfenv = 1, newproxy = 1, collectgarbage = 1, module = 1, gcinfo = 1, bit = 1 }

local function environment(box, modules)
  local env = { assert = assert, error = error, ipairs = ipairs, next = next, pairs = pairs, select = select,
    tonumber = tonumber, tostring = tostring, type = type, unpack = unpack, rawequal = rawequal,
      rawget = rawget,
    _VERSION = _VERSION }
  function env.pcall(f, ...) return settle(box, pcall(f, ...)) end
  -- the handler runs after the fact: inside of a hook's error it could loop without a limit
  function env.xpcall(f, handler, ...)
    local function caught(ok, ...)
      if ok then return ok, ... end
      return false, handler((...))
    end
    return caught(settle(box, pcall(f, ...)))
  end
  function env.setmetatable(t, m)
    if type(t) ~= "table" then refuse("setmetatable", ("a %s, want a table"):format(type(t))) end
    return setmetatable(t, m)
  end
  function env.getmetatable(t) return type(t) == "table" and getmetatable(t) or nil end
  function env.rawset(t, k, v)
    if getmetatable(t) == false then refuse("rawset", "this table belongs to perilune") end
    return rawset(t, k, v)
  end
  function env.print(...)
    if box.quiet then return end -- called a second time
    local o = {}
    for i = 1, select("#", ...) do o[i] = err.printable(string.sub(tostring((select(i, ...))), 1, 4096)) end
    io.stderr:write(table.concat(o, "\t"), "\n")
  end
  function env.require(name)
    if not modules[name] then
      err.raise(("recipes require only pl and pl.nn, not %s"):format(tostring(name)))
    end
    return modules[name]
  end
  local co = {}
  for _, name in ipairs { "create", "running", "status", "yield" } do co[name] = coroutine[name] end
  function co.resume(c, ...) return settle(box, box.attempt(coroutine.resume, c, ...)) end
  function co.wrap(f)
    local c = coroutine.create(f)
    local function result(ok, ...)
      if not ok then error((...), 0) end
      return ...
    end
    return function(...) return result(co.resume(c, ...)) end
  end
  local maths = {}
  for k, v in pairs(math) do if k ~= "random" and k ~= "randomseed" then maths[k] = v end end
  env.coroutine, env.math, env.table = co, maths, bounded_table(box.nested)
  -- the very functions that methods of strings are, so not to be replaced
  env.string = readonly("string", box.string)
  env._G = env
  return setmetatable(env, { __metatable = false,
    __index = function(_, k)
      if forbidden[k] then
        err.raise(("recipes have no '%s'"):format(k),
          { "a recipe only describes: it reads no files and runs no programs" })
      end
      err.unknown("a recipe's environment", k, err.names(env))
    end,
    __newindex = function(_, k)
      err.raise(("a recipe sets no globals: make '%s' local"):format(tostring(k)))
    end })
end

--- A new sandbox. modules: what `require` gives, by name. limits: see M.limits.
function M.new(modules, limits)
  local attempt, nested = nesting()
  local box = setmetatable({ limits = limits or M.limits, what = "recipe", attempt = attempt, nested = nested,
    string = bounded_string(nested) }, Box)
  local shown = {}
  for name, t in pairs(modules) do shown[name] = readonly(name, t) end
  box.env = environment(box, shown)
  return box
end

--- The function that a recipe's text is; bytecode is refused. The text is kept for error messages.
function Box:load(text, name)
  if text:sub(1, 1) == "\27" then error(err.new("bytecode, want the text of a recipe", nil, name, 1), 0) end
  err.register(name, text)
  self.name = name
  local f, msg = loadstring(text, "@" .. name)
  if not f then
    local line, what = msg:match "^.-:(%d+): (.*)$"
    error(err.new(what or msg, nil, name, tonumber(line)), 0)
  end
  jit.off(f, true)
  return setfenv(f, self.env)
end

-- f(...) under limits; watch(tick) sets the hook and returns what takes it off. The hook may fire between any
-- two instructions, so that it must be silent from the moment an error is on its way out (`over`).
local function guarded(box, l, watch, f, ...)
  local used, started, over = 0, os.clock(), false
  local function stop(what, limit)
    limit_memory(nil)
    local file, line = err.where()
    box.dead = err.new(("the %s ran for more than %g %s"):format(box.what, limit, what), nil, file, line)
    error(box.dead, 0)
  end
  local function tick()
    if over then return end
    if box.dead then error(box.dead, 0) end
    used = used + TICK
    if used > l.instructions then stop("instructions", l.instructions) end
    if os.clock() - started > l.seconds then stop("seconds", l.seconds) end
  end
  local function handler(e)
    over = true
    limit_memory(nil)
    return e == "not enough memory" and e or err.from(e)
  end
  box.dead, box.megabytes = nil, l.megabytes
  local strings = debug.getmetatable ""
  local whole, n, args = strings.__index, select("#", ...), { ... }
  local function enter() return f(unpack(args, 1, n)) end
  strings.__index = box.string
  local bytes = l.megabytes * 2 ^ 20
  if l.in_all then
    -- what no one holds any more does not count
    if limit_memory "policy" > bytes / 2 then collectgarbage() end
    limit_memory("policy", bytes)
  else
    limit_memory(bytes)
  end
  local leave, unwatch = err.enter(box.name), watch(tick)
  -- a limit that is reached right after f has returned is an error too: hence the outer pcall
  local ok, r = pcall(function() return { limit_memory(nil, xpcall(enter, handler)) } end)
  over = true
  local file, line = err.place()
  unwatch()
  leave()
  limit_memory(nil)
  strings.__index = whole
  if not ok then error(err.is(r) and r or err.new(tostring(r)), 0) end
  if r[2] == "not enough memory" and not r[1] then box:out_of_memory(file, line) end
  if box.dead then error(box.dead, 0) end
  if not r[1] then error(err.clean(r[2]), 0) end
  return unpack(r, 2, table.maxn(r))
end

local function count_only(tick)
  local f, mask, n = debug.gethook()
  debug.sethook(tick, "", TICK)
  return function() if f then debug.sethook(f, mask, n) else debug.sethook() end end
end
--- f(...) under the limits, once, and without following its lines: for texts whose calls must not happen twice.
function Box:once(f, ...) return guarded(self, self.limits, count_only, f, ...) end
local function follow(tick) return err.watch(tick, TICK) end

--- f(...) under the limits; raises error objects only. To follow the author's lines costs more than tracing itself:
--- so f is called a second time, with its lines followed, where the first call fails. f must bear that.
function Box:call(f, ...)
  local first = { pcall(guarded, self, self.limits, count_only, f, ...) }
  if first[1] then return unpack(first, 2, table.maxn(first)) end
  if self.dead and first[2].line then error(first[2], 0) end
  self.quiet = true
  collectgarbage() -- the memory that the first call left is not the second one's
  local ok, e = pcall(guarded, self, self.limits, follow, f, ...)
  self.quiet = false
  error(ok and first[2] or e, 0)
end

-- in_all: the megabytes are for all that policies hold together, also what they keep from step to step
local step_limits = { instructions = 2e6, seconds = 0.25, megabytes = 64, in_all = true }
--- f(...) within a step: tighter limits, no lines followed.
function Box:step(f, ...) return guarded(self, step_limits, count_only, f, ...) end

-- The line that a coroutine stands at, of the session's own code.
local function place_of(co)
  for level = 0, 80 do
    local i = debug.getinfo(co, level, "Sl")
    if not i then return nil end
    if i.what ~= "C" and i.currentline > 0 and not i.source:find "^@lua/pl/" then
      return i.source:match "^[@=]?(.*)", i.currentline
    end
  end
end

--- A box for policies that are functions of the session: they may use all that the session has, so that nothing here
--- can make limits stick to errors. Instead they are left where they stand when one is hit. The compiler must be off.
function M.session()
  local box = M.new {}
  function box.step(_, f, ...)
    local strings, l = debug.getmetatable "", step_limits
    local whole, bytes = strings.__index, l.megabytes * 2 ^ 20
    if limit_memory "policy" > bytes / 2 then collectgarbage() end
    strings.__index = box.string
    limit_memory("policy", bytes)
    local ok, what, co = limit_memory(nil, bounded(f, l.instructions, l.seconds, ...))
    strings.__index = whole
    if ok then return end
    if ok == nil then
      local file, line = place_of(co)
      error(err.new(("the policy ran for more than %g %s"):format(l[what], what), nil, file, line), 0)
    end
    if err.is(what) then error(what, 0) end
    if what == "not enough memory" then what = ("the policy used more than %g MB"):format(l.megabytes) end
    if type(what) ~= "string" then what = "error object is a " .. type(what) end
    local file, line, msg = what:match "^(..-):(%d+): (.*)$"
    if file then error(err.new(msg, nil, file, tonumber(line)), 0) end
    error(err.new(what, nil, place_of(co)), 0)
  end
  return box
end

return M
