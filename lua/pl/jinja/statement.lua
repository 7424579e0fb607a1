-- From the tree of a template to closures f(scope), which write to the output; BREAK and CONTINUE are what they return
-- to a loop around them.
local base, value = require "pl.jinja.base", require "pl.jinja.value"
local compile, globals = require "pl.jinja.compile", require "pl.jinja.globals"
local R, fail, undefined = base.R, base.fail, base.undefined
local expr, truth = compile.compile, value.truth
local BREAK, CONTINUE = 1, 2
local M = {}
local S = {}

local function write(s)
  local out = R.out
  local n = out.n + 1
  out.n, out[n] = n, s
  base.charge(#s + 16)
end

local function run(body, sc)
  for i = 1, #body do
    local r = body[i](sc)
    if r then return r end
  end
end

-- Statements of a body, in one closure each.
local function block(list, cx)
  local out = {}
  for i, n in ipairs(list) do
    cx.line = n.line
    out[i] = S[n.t](n, cx)
  end
  return out
end

-- What a body writes, as a text.
local function capture(body, sc)
  local outer = R.out
  local out = { n = 0 }
  R.out = out
  local r = run(body, sc)
  R.out = outer
  local s = table.concat(out, "", 1, out.n)
  base.charge(#s)
  return s, r
end

function S.Data(n)
  local s = n.v
  return function() write(s) end
end

function S.Print(n, cx)
  local line = n.line
  if #n == 1 then
    local f, str = expr(n[1], cx), value.str
    return function(sc)
      R.line = line
      base.step()
      local v = f(sc)
      write(type(v) == "string" and v or str(v))
    end
  end
  local fs = {}
  for i, x in ipairs(n) do fs[i] = expr(x, cx) end
  return function(sc)
    R.line = line
    base.step()
    for i = 1, #fs do write(value.str(fs[i](sc))) end
  end
end

-- Assignment: f(scope, value).
local function assign(to)
  local name = to.name
  if to.t == "Name" then return function(sc, v) sc[name] = v end end
  if to.t == "NsRef" then
    local attr = to.attr
    return function(sc, v)
      local ns
      repeat
        ns = sc[name]
        sc = sc[0]
      until ns ~= nil or not sc
      globals.set_attribute(ns == nil and undefined(name) or ns, attr, v)
    end
  end
  local parts = {}
  for i, x in ipairs(to.items) do parts[i] = assign(x) end
  return function(sc, v)
    if not value.is_iterable(v) then
      fail("python", "cannot unpack non-iterable %s object", base.type_name(v))
    end
    local got, n = {}, 0
    for x in value.iter(v) do
      n = n + 1
      if n > #parts then fail("python", "too many values to unpack (expected %d)", #parts) end
      got[n] = x
    end
    if n < #parts then fail("python", "not enough values to unpack (expected %d, got %d)", #parts, n) end
    for i = 1, n do parts[i](sc, got[i]) end
  end
end

function S.Set(n, cx)
  local line, f, to = n.line, expr(n[1], cx), assign(n.target)
  if n.target.t == "Name" then
    local name = n.target.name
    return function(sc)
      R.line = line
      base.step()
      sc[name] = f(sc)
    end
  end
  return function(sc)
    R.line = line
    base.step()
    to(sc, f(sc))
  end
end

function S.SetBlock(n, cx)
  local line, to = n.line, assign(n.target)
  local text
  local filter = n.filter and compile.filter(n.filter, cx, function() return text end)
  local body = compile.strictly(cx, block, n.body, cx)
  return function(sc)
    R.line = line
    base.step()
    local s, r = capture(body, { [0] = sc })
    text = s
    to(sc, filter and filter(sc) or s)
    return r
  end
end

function S.FilterBlock(n, cx)
  local line, text = n.line, nil
  local filter = compile.filter(n.filter, cx, function() return text end)
  local body = compile.strictly(cx, block, n.body, cx)
  return function(sc)
    R.line = line
    base.step()
    local s, r = capture(body, { [0] = sc })
    text = s
    R.line = line
    write(value.str(filter(sc)))
    return r
  end
end

function S.With(n, cx)
  local line, fs, to = n.line, {}, {}
  for i, x in ipairs(n.values) do fs[i], to[i] = expr(x, cx), assign(n.targets[i]) end
  local body = compile.strictly(cx, block, n.body, cx)
  return function(sc)
    R.line = line
    base.step()
    local inner = { [0] = sc }
    for i = 1, #fs do to[i](inner, fs[i](sc)) end
    return run(body, inner)
  end
end

function S.Generation(n, cx) -- marks what an assistant wrote, for training; here its body
  local body = compile.strictly(cx, block, n.body, cx)
  return function(sc)
    base.step()
    run(body, { [0] = sc })
  end
end

function S.If(n, cx)
  local line, tests, bodies, other = n.line, {}, {}, nil
  compile.softly(cx, function()
    for i, t in ipairs(n.tests) do
      tests[i] = expr(t, cx)
      bodies[i] = block(n.bodies[i], cx)
      cx.line = line
    end
    other = n.other and block(n.other, cx)
  end)
  return function(sc)
    R.line = line
    base.step()
    for i = 1, #tests do
      if truth(tests[i](sc)) then return run(bodies[i], sc) end
    end
    if other then return run(other, sc) end
  end
end

function S.Break() return function() return BREAK end end
function S.Continue() return function() return CONTINUE end end

function S.For(n, cx)
  local line, iter, to = n.line, expr(n.iter, cx), assign(n.target)
  local test = n.test and compile.strictly(cx, expr, n.test, cx)
  local body = compile.strictly(cx, block, n.body, cx)
  local other = n.other and compile.strictly(cx, block, n.other, cx)
  local uses_loop, single = n.uses_loop or n.recursive, n.target.t == "Name" and n.target.name

  local function over(sc, v, depth, recurse)
    local next_of = value.iter(v)
    if test then
      local all = next_of
      next_of = function()
        for x in all do
          base.step()
          local inner = { [0] = sc }
          to(inner, x)
          if truth(test(inner)) then return x end
        end
      end
    end
    local loop = uses_loop and globals.loop(v, next_of, test ~= nil, depth, recurse)
    local none = true
    while true do
      local x
      if loop then x = globals.advance(loop) else x = next_of() end
      if x == nil then break end
      base.step()
      local inner = { [0] = sc }
      if single then inner[single] = x else to(inner, x) end
      if loop then inner.loop = loop end
      local r = run(body, inner)
      if r == BREAK then break end
      none = none and r == CONTINUE -- as in Jinja, `else` is also for a loop none of whose turns came to its end
    end
    if none and other then return run(other, { [0] = sc }) end
  end

  if not n.recursive then
    return function(sc)
      R.line = line
      base.step()
      return over(sc, iter(sc), 0)
    end
  end
  return function(sc)
    R.line = line
    base.step()
    local function recurse(v, depth)
      base.enter()
      local outer, at = R.out, R.line
      local out = { n = 0 }
      R.out = out
      over(sc, v, depth, recurse)
      R.out, R.line = outer, at
      base.leave()
      return table.concat(out, "", 1, out.n)
    end
    return over(sc, iter(sc), 0, recurse)
  end
end

-- A function(scope) -> macro.
local function macro(n, cx)
  local name, params, defaults, uses = n.name, n.params, {}, n.uses
  local count, takes_caller = #params, uses.caller
  local place = {}
  for i, p in ipairs(params) do
    place[p] = i
    if p == "caller" then takes_caller = false end
    defaults[i] = n.defaults[i] and expr(n.defaults[i], cx)
  end
  local body = compile.strictly(cx, block, n.body, cx)
  local function bind(inner, a, kw)
    local rest
    if kw then
      for _, k in ipairs(kw[0]) do
        if place[k] and a[place[k]] == nil then inner[k] = kw[k]
        elseif k == "caller" and takes_caller then inner.caller = kw.caller
        elseif uses.kwargs then rest = rest or base.dict() base.put(rest, k, kw[k])
        elseif place[k] then fail("python", "macro '%s' got multiple values for argument '%s'", name, k)
        elseif k == "caller" then
          fail("python", "macro '%s' was invoked with two values for the special caller argument. "
            .. "This is most likely a bug.", name)
        else fail("python", "macro '%s' takes no keyword argument '%s'", name, k) end
      end
    end
    if a.n > count and not uses.varargs then
      fail("python", "macro '%s' takes not more than %d argument(s)", name, count)
    end
    for i = 1, math.min(count, a.n) do inner[params[i]] = a[i] end
    for i = 1, count do
      local p = params[i]
      if inner[p] == nil then
        inner[p] = defaults[i] and defaults[i](inner)
        if inner[p] == nil then inner[p] = undefined(p, nil, ("parameter '%s' was not provided"):format(p)) end
      end
    end
    if takes_caller and inner.caller == nil then inner.caller = undefined("caller", nil, "No caller defined") end
    if uses.kwargs then inner.kwargs = rest or base.dict() end
    if uses.varargs then inner.varargs = base.list({ unpack(a, count + 1, a.n) }, math.max(0, a.n - count), "tuple") end
  end
  return function(sc)
    return { kind = "macro", name = name, call = function(a, kw)
      base.enter()
      local outer, line = R.out, R.line
      local out = { n = 0 }
      R.out = out
      local inner = { [0] = sc }
      bind(inner, a, kw)
      run(body, inner)
      R.out, R.line = outer, line
      base.leave()
      local s = table.concat(out, "", 1, out.n)
      base.charge(#s)
      return s
    end }
  end
end

function S.Macro(n, cx)
  local make, name = macro(n, cx), n.name
  return function(sc)
    base.step()
    base.charge(200)
    sc[name] = make(sc)
  end
end

function S.CallBlock(n, cx)
  local line, make = n.line, macro(n.caller, cx)
  local f, args = expr(n.call[1], cx), compile.arguments(n.call.a, cx)
  return function(sc)
    R.line = line
    base.step()
    local v = f(sc)
    local a, kw = args(sc)
    local with = { [0] = {} }
    for i, k in ipairs(kw and kw[0] or {}) do with[0][i], with[k] = k, kw[k] end
    table.insert(with[0], "caller")
    with.caller = make(sc)
    write(value.str(require("pl.jinja.object").call(v, a, with)))
  end
end

-- Names that a template assigns anywhere: what it calls must be one of them, or known.
local function assigned(list, into)
  local function target(t)
    if t.t == "Name" then into[t.name] = true end
    for _, x in ipairs(t.items or {}) do target(x) end
  end
  for _, n in ipairs(list) do
    if n.target then target(n.target) end
    for _, t in ipairs(n.targets or {}) do target(t) end
    if n.t == "Macro" then into[n.name] = true end
    for _, p in ipairs(n.params or n.caller and n.caller.params or {}) do into[p] = true end
    for _, b in ipairs(n.bodies or {}) do assigned(b, into) end
    if n.body then assigned(n.body, into) end
    if n.other then assigned(n.other, into) end
    if n.caller then assigned(n.caller.body, into) end
  end
  return into
end

--- A template's tree as a function(scope); and what in its branches is unknown: { { line, msg } }.
function M.compile(tree)
  local cx = { line = 1, soft = false, unknown = {},
    assigned = assigned(tree, { loop = true, caller = true, varargs = true, kwargs = true }) }
  local body = block(tree, cx)
  return function(sc) run(body, sc) end, cx.unknown
end

return M
