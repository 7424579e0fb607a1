-- Functions that every template has: range, dict, namespace, cycler, joiner, raise_exception, strftime_now; and the
-- `loop` of a for loop.
local base, value, object, args = require "pl.jinja.base", require "pl.jinja.value", require "pl.jinja.object",
  require "pl.jinja.args"
local fail, kind, none, take = base.fail, base.kind, base.none, args.take
local M = { all = {} }
local MOST = 100000 -- elements of a range, as Jinja's sandbox has it

local function global(name, call) M.all[name] = { kind = "func", name = name, call = call } end

global("range", function(a, kw)
  if kw then fail("python", "range() takes no keyword arguments") end
  if a.n < 1 or a.n > 3 then fail("python", "range expected 1 to 3 arguments, got %d", a.n) end
  local from, to, by = 0, args.int("range", a[1]), 1
  if a.n > 1 then from, to, by = to, args.int("range", a[2]), args.int("range", a[3], 1) end
  if by == 0 then fail("python", "range() arg 3 must not be zero") end
  local n = math.max(0, math.ceil((to - from) / by))
  if n > MOST then
    fail("python", "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).", MOST)
  end
  return { kind = "range", from = from, to = to, by = by, n = n }
end)

global("dict", function(a, kw) return object.update(base.dict(), a, kw) end)

--- Set an attribute of a namespace.
function M.set_attribute(ns, name, v)
  if kind(ns) ~= "ns" then fail("other", "cannot assign attribute on non-namespace object") end
  if name:sub(1, 1) == "_" then
    fail("sandbox", "Chat templates cannot store underscore-prefixed attributes on a namespace, but got %s. "
      .. "Please rename the attribute.", value.repr(name))
  end
  base.put(ns.dict, name, v)
end

global("namespace", function(a, kw)
  local d = object.update(base.dict(), a, kw)
  local ns = { kind = "ns", dict = base.dict() }
  for i = 1, d.n do
    local k = d.keys[i]
    local v = d.at[base.hash(k)]
    if base.text(k) then M.set_attribute(ns, base.text(k), v) else base.put(ns.dict, k, v) end
  end
  return ns
end)

-- cycler(a, b): next() gives them in turn.
object.fields.cycler = { current = function(c) return c.items[c.pos + 1] end, pos = function(c) return c.pos end,
  items = function(c) return c.items end }
object.methods.cycler = {
  next = function(c)
    local v = c.items[c.pos + 1]
    c.pos = (c.pos + 1) % c.items.n
    return v
  end,
  reset = function(c)
    c.pos = 0
    return none
  end,
}
global("cycler", function(a)
  if a.n == 0 then fail("python", "at least one item has to be provided") end
  return { kind = "cycler", items = base.list({ unpack(a, 1, a.n) }, a.n, "tuple"), pos = 0 }
end)

-- joiner(sep): nothing when first called, then sep.
global("joiner", function(a, kw)
  local sep = take("joiner()", { "sep" }, a, kw)
  return { kind = "joiner", sep = sep == nil and ", " or sep, call = function(_, _, self)
    if self.used then return self.sep end
    self.used = true
    return ""
  end }
end)

global("raise_exception", function(a, kw)
  local message = take("raise_exception()", { "message!" }, a, kw)
  fail("raised", value.str(message))
end)

M.now = nil -- a time in place of the clock's, for tests
global("strftime_now", function(a, kw)
  local form = args.text("strftime_now", (take("strftime_now()", { "format!" }, a, kw)))
  return require("pl.jinja.format").strftime(form, M.now or os.time())
end)

-- loop -----------------------------------------------------------------------------------------------------------

local sized = { list = true, tuple = true, dict = true, view = true, range = true, str = true, markup = true }

local function length(l)
  if not l.n then
    if sized[kind(l.source)] and not l.filtered then
      l.n = value.len(l.source)
    else -- what is left is read now
      local rest, n, i = {}, 0, 0
      for v in l.next do
        base.step()
        n = n + 1
        rest[n] = v
      end
      l.n = n + l.i + (l.after ~= nil and 1 or 0)
      l.next = function()
        i = i + 1
        return rest[i]
      end
    end
  end
  return l.n
end

local function peek(l)
  if l.after == nil and not l.done then
    l.after = l.next()
    l.done = l.after == nil
  end
  return l.after
end

local function no_recursion() fail("python", "The loop must have the 'recursive' marker to be called recursively.") end

--- A loop over next(), of the elements of `source`.
function M.loop(source, next_of, filtered, depth, recurse)
  base.charge(200)
  local l = { kind = "loop", source = source, next = next_of, filtered = filtered, i = 0, depth0 = depth,
    length = length }
  l.call = recurse and function(a, kw) return recurse((take("loop()", { "iterable!" }, a, kw)), depth + 1) end
    or no_recursion
  return l
end

--- The next element, or nil.
function M.advance(l)
  local v = l.after
  if v ~= nil then l.after = nil elseif not l.done then v = l.next() end
  if v == nil then return nil end
  l.i = l.i + 1
  l.before, l.current = l.current, v
  return v
end

object.fields.loop = {
  index = function(l) return l.i end,
  index0 = function(l) return l.i - 1 end,
  revindex = function(l) return length(l) - l.i + 1 end,
  revindex0 = function(l) return length(l) - l.i end,
  first = function(l) return l.i == 1 end,
  last = function(l) return peek(l) == nil end,
  length = length,
  depth = function(l) return l.depth0 + 1 end,
  depth0 = function(l) return l.depth0 end,
  previtem = function(l)
    if l.i == 1 then return base.undefined("previtem", nil, "there is no previous item") end
    return l.before
  end,
  nextitem = function(l)
    local v = peek(l)
    if v == nil then return base.undefined("nextitem", nil, "there is no next item") end
    return v
  end,
}
object.methods.loop = {
  cycle = function(l, a)
    if a.n == 0 then fail("python", "no items for cycling given") end
    return a[(l.i - 1) % a.n + 1]
  end,
  changed = function(l, a)
    local v = base.tuple(unpack(a, 1, a.n))
    if l.changed and value.eq(l.changed, v) then return false end
    l.changed = v
    return true
  end,
}

return M
