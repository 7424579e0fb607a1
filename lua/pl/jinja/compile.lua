-- From the tree of an expression to a Lua closure f(scope) -> value. A scope: names to values, [0] the scope around it.
local base, value, object = require "pl.jinja.base", require "pl.jinja.value", require "pl.jinja.object"
local arith, filters, tests = require "pl.jinja.arith", require "pl.jinja.filters", require "pl.jinja.tests"
local globals = require "pl.jinja.globals"
local R, fail, none, undefined = base.R, base.fail, base.none, base.undefined
local truth = value.truth
local M = {}

local E = {} -- by node type: f(node, cx); cx: what is known while compiling

local quiet = { Name = true, Const = true }
--- cx.line: the line that the statement around it has noted; soft: within a branch, where what is unknown fails only
--- when it is reached, as in Jinja; inside: within a loop or macro.
local function compile(n, cx)
  local f = E[n.t](n, cx)
  local line = n.line
  if line ~= cx.line and not quiet[n.t] then
    return function(sc)
      R.line = line
      return f(sc)
    end
  end
  return f
end
M.compile = compile

local function unknown(n, cx, soft, kind, fmt, ...)
  local msg = fmt:format(...)
  if not soft then
    R.line = n.line
    fail("syntax", msg)
  end
  cx.unknown[#cx.unknown + 1] = { line = n.line, msg = msg }
  return function() fail(kind, msg) end
end

function E.Const(n)
  local v = n.v
  return function() return v end
end

function E.Name(n)
  local name, default = n.name, globals.all[n.name]
  return function(sc)
    repeat
      local v = sc[name]
      if v ~= nil then return v end
      sc = sc[0]
    until not sc
    if default then return default end
    return undefined(name)
  end
end

local function all(list, cx)
  local fs = {}
  for i, x in ipairs(list) do fs[i] = compile(x, cx) end
  return fs, #fs
end

local function sequence(kind)
  return function(n, cx)
    local fs, count = all(n.items, cx)
    return function(sc)
      local out = {}
      base.step(count)
      for i = 1, count do out[i] = fs[i](sc) end
      return base.list(out, count, kind)
    end
  end
end
E.List, E.Tuple = sequence "list", sequence "tuple"

function E.Dict(n, cx)
  local keys, values = {}, {}
  for i, item in ipairs(n.items) do keys[i], values[i] = compile(item[1], cx), compile(item[2], cx) end
  return function(sc)
    local d = base.dict()
    for i = 1, #keys do base.put(d, keys[i](sc), values[i](sc)) end
    return d
  end
end

for name, f in pairs { Neg = arith.neg, Pos = arith.pos } do
  E[name] = function(n, cx)
    local a = compile(n[1], cx)
    return function(sc) return f(a(sc)) end
  end
end

function E.Bin(n, cx)
  local a, b, f = compile(n[1], cx), compile(n[2], cx), arith[n.op]
  return function(sc)
    local x = a(sc)
    return f(x, b(sc))
  end
end

function E.Concat(n, cx)
  local fs, count = all(n.parts, cx)
  return function(sc)
    local out, size = {}, 0
    for i = 1, count do
      local v = fs[i](sc)
      local s = type(v) == "string" and v or value.str(v)
      size = size + #s
      out[i] = s
    end
    base.charge(size)
    if size > 2 ^ 24 then fail("limit", "a text of more than %d bytes", 2 ^ 24) end
    return table.concat(out)
  end
end

function E.And(n, cx)
  local a, b = compile(n[1], cx), compile(n[2], cx)
  return function(sc)
    local v = a(sc)
    if truth(v) then return b(sc) end
    return v
  end
end
function E.Or(n, cx)
  local a, b = compile(n[1], cx), compile(n[2], cx)
  return function(sc)
    local v = a(sc)
    if truth(v) then return v end
    return b(sc)
  end
end
function E.Not(n, cx)
  local a = compile(n[1], cx)
  return function(sc) return not truth(a(sc)) end
end

local compare = { eq = value.eq, ne = function(a, b) return not value.eq(a, b) end, lt = value.lt, le = value.le,
  gt = value.gt, ge = value.ge, ["in"] = function(a, b) return value.contains(b, a) end,
  notin = function(a, b) return not value.contains(b, a) end }
function E.Compare(n, cx)
  local first, ops, fs = compile(n[1], cx), {}, {}
  for i, o in ipairs(n.ops) do ops[i], fs[i] = compare[o.op], compile(o.e, cx) end
  if #ops == 1 then
    local op, f = ops[1], fs[1]
    return function(sc)
      local x = first(sc)
      return op(x, f(sc))
    end
  end
  return function(sc)
    local x = first(sc)
    for i = 1, #ops do
      local y = fs[i](sc)
      if not ops[i](x, y) then return false end
      x = y
    end
    return true
  end
end

--- A branch: what is unknown in it is an error only where it is reached.
function M.softly(cx, f, ...)
  local was = cx.soft
  cx.soft = true
  local r = f(...)
  cx.soft = was
  return r
end
--- The inside of a loop or macro: its branches are its own, as in Jinja. For functions it is a branch.
function M.strictly(cx, f, ...)
  local was, inside = cx.soft, cx.inside
  cx.soft, cx.inside = false, true
  local r = f(...)
  cx.soft, cx.inside = was, inside
  return r
end

function E.Cond(n, cx)
  local test = M.softly(cx, compile, n.test, cx)
  local a = M.softly(cx, compile, n[1], cx)
  local b = n[2] and M.softly(cx, compile, n[2], cx)
  local line = n.line
  return function(sc)
    if truth(test(sc)) then return a(sc) end
    if b then return b(sc) end
    return undefined("if", nil, ("the inline if-expression on line %d evaluated to false and no else section was "
      .. "defined."):format(line))
  end
end

function E.Attr(n, cx)
  local a, name, getattr = compile(n[1], cx), n.name, object.getattr
  return function(sc) return getattr(a(sc), name) end
end

function E.Item(n, cx)
  local a, k, getitem = compile(n[1], cx), compile(n[2], cx), object.getitem
  return function(sc)
    local v = a(sc)
    return getitem(v, k(sc))
  end
end

function E.Slice(n, cx)
  local from, to, by = n.from and compile(n.from, cx), n.to and compile(n.to, cx), n.by and compile(n.by, cx)
  return function(sc)
    return { kind = "slice", from = from and from(sc) or none, to = to and to(sc) or none, by = by and by(sc) or none }
  end
end

local nothing = { n = 0 }
-- Arguments: a function(scope) -> { n, ... }, names or nil.
local function arguments(a, cx)
  local fs, count = all(a.args, cx)
  local names, star, star2 = {}, a.star and compile(a.star, cx), a.star2 and compile(a.star2, cx)
  for i, x in ipairs(a.names) do names[i] = { x[1], compile(x[2], cx) } end
  if count == 0 and #names == 0 and not star and not star2 then return function() return nothing end end
  return function(sc)
    local out, kw = { n = count }, nil
    for i = 1, count do out[i] = fs[i](sc) end
    if star then
      for v in value.iter(star(sc)) do
        base.step()
        out.n = out.n + 1
        if out.n > 1000 then fail("limit", "a call with more than 1000 arguments") end
        out[out.n] = v
      end
    end
    if #names > 0 then
      kw = { [0] = {} }
      for i, x in ipairs(names) do
        kw[x[1]] = x[2](sc)
        kw[0][i] = x[1]
      end
    end
    if star2 then
      local d = star2(sc)
      if base.kind(d) ~= "dict" then
        fail("python", "argument after ** must be a mapping, not %s", base.type_name(d))
      end
      base.step(d.n)
      if d.n > 1000 then fail("limit", "a call with more than 1000 arguments") end
      for i = 1, d.n do
        local k = base.text(d.keys[i])
        if not k then fail("python", "keywords must be strings") end
        kw = kw or { [0] = {} }
        if kw[k] ~= nil then fail("python", "got multiple values for keyword argument '%s'", k) end
        kw[k] = d.at[k]
        table.insert(kw[0], k)
      end
    end
    return out, kw
  end
end
M.arguments = arguments

function E.Call(n, cx)
  local callee = n[1]
  local args = arguments(n.a, cx)
  if callee.t == "Name" and not globals.all[callee.name] and not cx.assigned[callee.name] then
    return unknown(callee, cx, cx.soft or cx.inside, "undefined", "'%s' is undefined", callee.name)
  end
  local f, call = compile(callee, cx), object.call
  return function(sc)
    local v = f(sc)
    return call(v, args(sc))
  end
end

-- Filter n over a function for its input.
local function filtered(n, cx, a)
  local args, f = arguments(n.a, cx), filters[n.name]
  if not f then return unknown(n, cx, cx.soft, "other", "No filter named '%s' found.", n.name) end
  return function(sc)
    base.step()
    local v = a(sc)
    return f(v, args(sc))
  end
end
function E.Filter(n, cx) return filtered(n, cx, compile(n[1], cx)) end
--- Filters one over the other, the innermost over a function for its input.
function M.filter(n, cx, input)
  return n.t == "Hole" and input or filtered(n, cx, M.filter(n[1], cx, input))
end

function E.Test(n, cx)
  local a, args, name = compile(n[1], cx), arguments(n.a, cx), n.name
  if not tests.known(name) then return unknown(n, cx, cx.soft, "other", "No test named '%s' found.", name) end
  local quick = tests[name]
  if #n.a.args == 0 and #n.a.names == 0 and not n.a.star and not n.a.star2 and tests.takes(name) == 0 then
    return function(sc) return quick(a(sc)) and true or false end
  end
  local apply = tests.apply
  return function(sc)
    local v = a(sc)
    local given, kw = args(sc)
    return apply(name, v, given, kw)
  end
end

return M
