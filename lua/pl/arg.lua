-- Arguments of public functions. A module says once, beside its functions, what each takes; every wrong call then
-- gives the same kind of text, at the caller's line:
--   slice: from is -1, want a whole number of at least 0
--            takes  x:slice(axis, from, n)
-- A list of arguments alternates names and what they must be (see schema.wrong): { "axis", whole(1), "n?", whole(0) }.
-- "?" after a name: may be nil. "..." as the last name: any number of them.
local err, schema = require "pl.err", require "pl.schema"
local M = {}

--- f behind a check of its arguments. name: how errors call it; call: how it is written; self: a function(v) that says
-- what is wrong with the object of a method, or nil for a plain function.
function M.check(name, call, takes, self, f)
  local names, wants, n, rest = {}, {}, #takes / 2, nil
  for i = 1, n do names[i], wants[i] = takes[2 * i - 1], takes[2 * i] end
  local usage = { ("takes  %s(%s)"):format(call, table.concat(names, ", ")) }
  if names[n] == "..." then rest, n = wants[n], n - 1 end
  local first = self and 1 or 0
  local function look(i, v, want, what)
    local bad, part = schema.wrong(v, want)
    if bad then err.raise(("%s: %s%s is %s"):format(name, what or "argument " .. i, part or "", bad), usage) end
  end
  return function(...)
    local given = select("#", ...) - first
    if self then
      local bad = self((...))
      if bad then err.raise(("%s: %s"):format(name, bad), usage) end
    end
    if given > n and not rest then
      err.raise(("%s: %d arguments, want at most %d"):format(name, given, n), usage)
    end
    for i = 1, n do
      local v, what = (select(first + i, ...)), names[i]
      if what:sub(-1) ~= "?" then
        look(i, v, wants[i], what)
      elseif v ~= nil then
        look(i, v, wants[i], what:sub(1, -2))
      end
    end
    for i = n + 1, rest and given or n do look(i, (select(first + i, ...)), rest) end
    return f(...)
  end
end

--- Put checks before functions of t. list: name -> arguments; prefix: "pl", as in pl.zeros.
function M.functions(prefix, t, list)
  for name, takes in pairs(list) do
    t[name] = M.check(name, prefix .. "." .. name, takes, nil, t[name])
  end
end

--- Put checks before methods of t. object: "x", as in x:slice; self(v): what is wrong with the object, or nil.
function M.methods(object, t, self, list)
  for name, takes in pairs(list) do
    t[name] = M.check(name, object .. ":" .. name, takes, self, t[name])
  end
end

--- A self check for objects with a metatable of their own.
function M.object(what, mt, closed)
  return function(v)
    if type(v) == "table" and debug.getmetatable(v) == mt then return nil end
    if closed and type(v) == "table" and debug.getmetatable(v) == closed then
      return ("this %s is closed"):format(what)
    end
    return ("called on %s, want a %s (with a colon)"):format(schema.show(v), what)
  end
end

--- Put a check of the object, and no more, before every method of t.
function M.guard(what, t, self)
  for name, f in pairs(t) do
    if type(f) == "function" and name:sub(1, 2) ~= "__" then
      t[name] = function(object, ...)
        local bad = self(object)
        if bad then err.raise(("%s: %s"):format(what, bad)) end
        return f(object, ...)
      end
    end
  end
end

--- Objects with this metatable, whose methods it holds, have handles of C under these names: where one is missing, to
--- ask for it is an error. C would be given NULL.
function M.handles(what, mt, ...)
  local is_handle = {}
  for i = 1, select("#", ...) do is_handle[select(i, ...)] = true end
  mt.__index = function(_, k)
    local v = mt[k]
    if v == nil and is_handle[k] then err.raise(("this %s is closed"):format(what)) end
    return v
  end
end

--- The metatable of an object that was closed: another close() does nothing, anything else is an error.
function M.closed(what)
  return { __tostring = function() return "a closed " .. what end, __index = function(_, k)
    if k ~= "close" then err.raise(("this %s is closed"):format(what)) end
    return function() end
  end }
end

--- Any value.
function M.any() end

-- Operators that tensors do not have: an error that says so, instead of Lua's own.
local operators = { __sub = "-", __mul = "*", __div = "/", __mod = "%", __pow = "^", __unm = "-", __concat = "..",
  __lt = "<", __le = "<=" }
function M.no_operators(mt)
  for event, sign in pairs(operators) do
    mt[event] = function()
      err.raise(("a tensor has no operator '%s'"):format(sign),
        { "tensors are added with +; everything else is an op" })
    end
  end
  mt.__call = function() err.raise "a tensor cannot be called" end
end

return M
