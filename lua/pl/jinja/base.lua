-- What every part of the template interpreter shares: how it fails, what a rendering may still spend, and the kinds
-- of values. A value is a Lua string, a boolean, a number (a Python int) or a table with a `kind`:
--   none; float {v}; big {s} (an int beyond 2^53, by its digits); list and tuple {n, [1..n], own}; dict {n, keys, at,
--   own}; range; view (of a dict); gen (a generator); undefined; markup {s}; slice; func, method, macro; ns; loop ...
-- `own` says that the template made it, so that it may be changed; what the caller gave never may.
local M = {}

-- What is left of the caps, and where the template is. There is one rendering at a time: nothing in it waits.
local R = { steps = 0, bytes = 0, depth = 0, line = 0, deepest = 100, out = { n = 0 } }
M.R = R

--- Caps of one rendering.
M.caps = {
  steps = 4e6,        -- statements, iterations, calls, and elements that a filter looks at
  bytes = 2 ^ 28,     -- of all texts and lists that it makes, in between too
  output = 2 ^ 24,    -- bytes of its text
  depth = 100,        -- macros within macros, lists within lists
}

local E = { __tostring = function(e) return e.msg end }
--- Stop the rendering. kind: raised, undefined, python, sandbox, limit, other, syntax.
function M.fail(kind, fmt, ...)
  local msg = select("#", ...) > 0 and fmt:format(...) or fmt
  error(setmetatable({ kind = kind, msg = msg, line = R.line }, E), 0)
end
local fail = M.fail
function M.is_error(e) return getmetatable(e) == E end

function M.step(n)
  local left = R.steps - (n or 1)
  R.steps = left
  if left < 0 then fail("limit", "the template takes more steps than it may") end
end

function M.charge(n)
  local left = R.bytes - n
  R.bytes = left
  if left < 0 then fail("limit", "the template makes more text and lists than it may") end
end
local charge = M.charge

function M.enter()
  local d = R.depth + 1
  R.depth = d
  if d > R.deepest then fail("limit", "the template goes deeper than it may (%d)", R.deepest) end
end
function M.leave() R.depth = R.depth - 1 end

-- Values ------------------------------------------------------------------------------------------------------

local value_mt = { __metatable = false } -- of what can come from a caller: to be told from plain tables
M.none = setmetatable({ kind = "none" }, value_mt)
function M.is_value(t) return debug.getmetatable(t) == value_mt end

function M.float(v) return setmetatable({ kind = "float", v = v }, value_mt) end
function M.big(digits) return setmetatable({ kind = "big", s = digits }, value_mt) end

function M.list(t, n, kind)
  t = t or {}
  n = n or #t
  charge(64 + 16 * n)
  t.kind, t.own, t.n = kind or "list", true, n
  return setmetatable(t, value_mt)
end
function M.tuple(...) return M.list({ ... }, select("#", ...), "tuple") end

function M.dict()
  charge(128)
  return setmetatable({ kind = "dict", own = true, n = 0, keys = {}, at = {} }, value_mt)
end

--- The key of a dict that a value is: equal values give the same (1, 1.0 and True are equal).
local function hash(k)
  local t = type(k)
  if t == "string" or t == "number" then return k end
  if t == "boolean" then return k and 1 or 0 end
  local kind = k.kind
  if kind == "float" then return k.v == k.v and k.v or k end
  if kind == "markup" then return k.s end
  if kind == "big" then return "\0big " .. k.s end
  if kind == "undefined" then return "\0undefined" end
  if kind == "tuple" then
    local parts = {}
    M.enter()
    for i = 1, k.n do
      local h = hash(k[i])
      parts[i] = type(h) == "table" and ("%p"):format(h) or type(h):sub(1, 1) .. #tostring(h) .. ":" .. tostring(h)
    end
    M.leave()
    local s = "\0tuple " .. table.concat(parts, ",")
    charge(#s)
    return s
  end
  if kind == "list" or kind == "dict" or kind == "slice" or kind == "view" then
    fail("python", "unhashable type: '%s'", kind)
  end
  return k
end
M.hash = hash

function M.put(d, k, v)
  local h = hash(k)
  if d.at[h] == nil then
    charge(48)
    d.n = d.n + 1
    d.keys[d.n] = k
  end
  d.at[h] = v
end

function M.take(d, k) -- remove
  local h = hash(k)
  local v = d.at[h]
  if v == nil then return nil end
  for i = 1, d.n do
    if hash(d.keys[i]) == h then
      table.remove(d.keys, i)
      break
    end
  end
  M.step(d.n)
  d.n = d.n - 1
  d.at[h] = nil
  return v
end

--- An undefined value. name: what was asked for; obj: of what, or nil for a variable.
function M.undefined(name, obj, msg, kind)
  charge(64)
  return { kind = "undefined", name = name, obj = obj, msg = msg, cause = kind }
end

local python_names = { str = "str", int = "int", bool = "bool", none = "NoneType", big = "int", undefined = "Undefined",
  markup = "Markup", gen = "generator", func = "function", method = "builtin_function_or_method", macro = "Macro",
  ns = "Namespace", loop = "LoopContext", cycler = "Cycler", joiner = "Joiner" }
function M.kind(v)
  local t = type(v)
  if t == "string" then return "str" end
  if t == "number" then return "int" end
  if t == "boolean" then return "bool" end
  return v.kind
end
--- The Python name of a value's type.
function M.type_name(v)
  local k = M.kind(v)
  if k == "view" then return "dict_" .. v.what end
  return python_names[k] or k
end

--- The text of a str or Markup, or nil.
function M.text(v)
  if type(v) == "string" then return v end
  return type(v) == "table" and v.kind == "markup" and v.s or nil
end

local function object_name(obj)
  local k = M.kind(obj)
  if k == "none" then return "None" end
  return M.type_name(obj) .. " object"
end

--- Raise what the use of an undefined value raises.
function M.use_undefined(u)
  if u.msg then fail(u.cause or "undefined", u.msg) end
  if u.obj == nil then fail("undefined", "'%s' is undefined", tostring(u.name)) end
  if type(u.name) ~= "string" then
    fail("undefined", "%s has no element %s", object_name(u.obj), require("pl.jinja.value").repr(u.name))
  end
  fail("undefined", "'%s' has no attribute '%s'", object_name(u.obj), u.name)
end

--- A number as Lua has it, or nil: ints, bools, floats.
function M.number(v)
  local t = type(v)
  if t == "number" then return v end
  if t == "boolean" then return v and 1 or 0 end
  if t == "table" then
    if v.kind == "float" then return v.v end
    if v.kind == "big" then return tonumber(v.s) end
  end
end

--- An int or a bool as a Lua number, or nil.
function M.int(v)
  if type(v) == "number" then return v end
  if type(v) == "boolean" then return v and 1 or 0 end
end

--- The result of arithmetic on ints.
function M.whole(v)
  if v > 2 ^ 53 or v < -2 ^ 53 then fail("limit", "an integer beyond 2^53") end
  return v + 0
end

return M
