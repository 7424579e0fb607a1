-- Filters of lists and other sequences (see filters.lua).
local base, text, value = require "pl.jinja.base", require "pl.jinja.text", require "pl.jinja.value"
local object, arith, args = require "pl.jinja.object", require "pl.jinja.arith", require "pl.jinja.args"
local tests = require "pl.jinja.tests"
local fail, kind, none, charge, step = base.fail, base.kind, base.none, base.charge, base.step
local take, int = args.take, args.int
local M = {}

local filter = args.definer(M)
local function truth(v) return v ~= nil and value.truth(v) end

filter("length", {}, value.len)
M.count = M.length
filter("list", {}, function(v) return value.to_list(v) end)
filter("first", {}, function(v)
  local r = value.iter(v)()
  if r == nil then return base.undefined("first", nil, "No first item, sequence was empty.") end
  return r
end)
filter("last", {}, function(v)
  local k = kind(v)
  if k == "gen" then fail("python", "'generator' object is not reversible") end
  local l = (k == "list" or k == "tuple") and v or value.to_list(v)
  if l.n == 0 then return base.undefined("last", nil, "No last item, sequence was empty.") end
  return l[l.n]
end)
filter("random", {}, function(v)
  local l = value.to_list(v)
  if l.n == 0 then return base.undefined("random", nil, "No random item, sequence was empty.") end
  return l[math.random(l.n)]
end)
filter("reverse", {}, function(v)
  if base.text(v) then
    local cs, n = text.chars(base.text(v))
    local out = {}
    for i = 1, n do out[i] = cs[n + 1 - i] end
    return table.concat(out)
  end
  if not value.is_iterable(v) then fail("python", "argument must be iterable") end
  if kind(v) == "gen" then
    local l = value.to_list(v)
    for i = 1, math.floor(l.n / 2) do l[i], l[l.n + 1 - i] = l[l.n + 1 - i], l[i] end
    return l
  end
  local l = value.to_list(v)
  local i = l.n + 1
  return value.gen(function()
    i = i - 1
    return l[i]
  end)
end)
M.default = function(v, a, kw)
  local default, boolean = take("default()", { "default_value", "boolean" }, a, kw)
  if kind(v) == "undefined" or truth(boolean) and not value.truth(v) then
    if default == nil then return "" end
    return default
  end
  return v
end
M.d = M.default
filter("items", {}, function(v)
  if kind(v) == "undefined" then return value.gen(function() end) end
  if kind(v) ~= "dict" then fail("python", "Can only get item pairs from a mapping.") end
  return value.gen(value.iter { kind = "view", what = "items", dict = v })
end)

-- "a.0.b" as a function that follows it.
local function attribute_of(name, default)
  if default == none then default = nil end
  if base.int(name) then name = value.int_repr(base.int(name)) end
  local path = {}
  local s = base.text(name)
  if not s then
    return function(v) return object.getitem(v, name) end
  end
  for part in (s .. "."):gmatch "([^%.]*)%." do path[#path + 1] = part:find "^%d+$" and tonumber(part) or part end
  return function(v)
    for _, part in ipairs(path) do
      step()
      v = object.getitem(v, part)
      if default ~= nil and kind(v) == "undefined" then v = default end
    end
    return v
  end
end
local function folded(v) -- as sorting sees it, unless case matters
  local s = base.text(v)
  return s and text.lower(s) or v
end
local function key_of(attribute, fold)
  local get = attribute ~= nil and attribute ~= none and attribute_of(attribute)
  return function(v)
    if get then v = get(v) end
    return fold and folded(v) or v
  end
end

filter("attr", { "name!" }, function(v, name)
  local s = value.str(name)
  if kind(v) == "dict" then -- attributes only, no items
    local r = object.getattr({ kind = "dict", n = 0, keys = {}, at = {}, own = false }, s)
    if kind(r) == "method" then return object.getattr(v, s) end
    return base.undefined(s, v)
  end
  return object.getattr(v, s)
end)
filter("join", { "d", "attribute" }, function(v, sep, attribute)
  sep = sep == nil and "" or value.str(sep)
  local get = attribute ~= nil and attribute ~= none and attribute_of(attribute)
  local parts, n = {}, 0
  for x in value.iter(v) do
    step()
    if get then x = get(x) end
    n = n + 1
    parts[n] = value.str(x)
    charge(#parts[n] + #sep + 16)
  end
  return table.concat(parts, sep)
end)
filter("sort", { "reverse", "case_sensitive", "attribute" }, function(v, reverse, case, attribute)
  local s = base.text(attribute)
  local gets = {}
  if s then
    for part in (s .. ","):gmatch "([^,]*)," do gets[#gets + 1] = key_of(part, not truth(case)) end
  else
    gets[1] = key_of(attribute, not truth(case))
  end
  return object.sorted(v, function(x) -- lists are compared, so that equal values need no order
    local t = {}
    for i, get in ipairs(gets) do t[i] = get(x) end
    return base.list(t, #t)
  end, truth(reverse))
end)
filter("dictsort", { "case_sensitive", "by", "reverse" }, function(v, case, by, reverse)
  by = by and args.text("dictsort", by) or "key"
  if by ~= "key" and by ~= "value" then
    fail("python", "You can only sort by either \"key\" or \"value\"")
  end
  if kind(v) ~= "dict" then
    if kind(v) == "undefined" then base.use_undefined(v) end
    fail("undefined", "'%s object' has no attribute 'items'", base.type_name(v))
  end
  local at = by == "key" and 1 or 2
  return object.sorted({ kind = "view", what = "items", dict = v }, function(p)
    return truth(case) and p[at] or folded(p[at])
  end, truth(reverse))
end)
filter("unique", { "case_sensitive", "attribute" }, function(v, case, attribute)
  local key, seen, next_of = key_of(attribute, not truth(case)), {}, value.iter(v)
  return value.gen(function()
    while true do
      local x = next_of()
      if x == nil then return nil end
      step()
      local h = base.hash(key(x))
      if not seen[h] then
        charge(48)
        seen[h] = true
        return x
      end
    end
  end)
end)
for name, better in pairs { min = value.lt, max = value.gt } do
  filter(name, { "case_sensitive", "attribute" }, function(v, case, attribute)
    local key, best, best_key = key_of(attribute, not truth(case)), nil, nil
    for x in value.iter(v) do
      step()
      local k = key(x)
      if best == nil or better(k, best_key) then best, best_key = x, k end
    end
    if best == nil then return base.undefined(name, nil, "No aggregated item, sequence was empty.") end
    return best
  end)
end
filter("sum", { "attribute", "start" }, function(v, attribute, start)
  local get = attribute ~= nil and attribute ~= none and attribute_of(attribute)
  local total = start or 0
  if base.text(total) then fail("python", "sum() can't sum strings [use ''.join(seq) instead]") end
  for x in value.iter(v) do
    step()
    if get then x = get(x) end
    if base.text(x) then
      fail("python", "unsupported operand type(s) for +: '%s' and 'str'", base.type_name(total))
    end
    total = arith.add(total, x)
  end
  return total
end)
filter("batch", { "linecount!", "fill_with" }, function(v, count, fill)
  count = int("batch", count)
  local next_of, done = value.iter(v), false
  return value.gen(function()
    if done then return nil end
    local l, n = {}, 0
    while n < count or count <= 0 do
      local x = next_of()
      step()
      if x == nil then
        done = true
        break
      end
      n = n + 1
      l[n] = x
    end
    if n == 0 then return nil end
    if done and fill ~= nil and fill ~= none then
      if count > 2 ^ 16 then fail("limit", "batch: more than %d", 2 ^ 16) end
      for i = n + 1, count do l[i] = fill end
      n = math.max(n, count)
    end
    return base.list(l, n)
  end)
end)
filter("slice", { "slices!", "fill_with" }, function(v, slices, fill)
  slices = int("slice", slices)
  local l = value.to_list(v)
  if slices == 0 then fail("python", "integer division or modulo by zero") end
  local per, extra = math.floor(l.n / slices), l.n % slices
  local i, at = 0, 0
  return value.gen(function()
    if i >= slices then return nil end
    step()
    local n = per + (i < extra and 1 or 0)
    local out = {}
    for k = 1, n do out[k] = l[at + k] end
    at = at + n
    if fill ~= nil and fill ~= none and i >= extra then
      n = n + 1
      out[n] = fill
    end
    i = i + 1
    return base.list(out, n)
  end)
end)
filter("groupby", { "attribute!", "default", "case_sensitive" }, function(v, attribute, default, case)
  local get = attribute_of(attribute, default)
  local function key(x)
    local k = get(x)
    return truth(case) and k or folded(k)
  end
  local sorted = object.sorted(v, key)
  local groups, last = {}, nil
  for i = 1, sorted.n do
    local k = key(sorted[i])
    if not last or not value.eq(k, last.key) then
      last = { key = k, shown = get(sorted[i]), items = {} }
      groups[#groups + 1] = last
    end
    last.items[#last.items + 1] = sorted[i]
  end
  local out = {}
  for i, g in ipairs(groups) do
    local l = base.list(g.items, #g.items)
    local t = base.tuple(g.shown, l)
    t.attributes = { grouper = g.shown, list = l }
    out[i] = t
  end
  return base.list(out, #groups)
end)

-- A function from a test's or filter's name and the rest of the arguments.
local function rest_of(a, from)
  local out = { n = math.max(0, a.n - from + 1) }
  for i = 1, out.n do out[i] = a[from + i - 1] end
  return out
end
local function tester(name, a, kw, from)
  if a.n < from then return value.truth end
  local t = base.text(a[from])
  if not t or not tests.known(t) then fail("other", "No test named %s.", value.repr(a[from])) end
  local rest = rest_of(a, from + 1)
  return function(x) return tests.apply(t, x, rest, kw) end
end
local function picker(name, want, by_attribute)
  M[name] = function(v, a, kw)
    local get, from = nil, 1
    if by_attribute then
      if a.n == 0 then fail("python", "Missing parameter for attribute name") end
      get, from = attribute_of(a[1]), 2
    end
    local next_of, test
    return value.gen(function()
      if not next_of then -- nothing is looked at before the first element is asked for
        if kind(v) == "undefined" or value.truth(v) then
          test = tester(name, a, kw, from)
          next_of = value.iter(v)
        else
          next_of = function() end
        end
      end
      while true do
        local x = next_of()
        if x == nil then return nil end
        step()
        local y = x
        if get then y = get(x) end
        if test(y) == want then return x end
      end
    end)
  end
end
picker("select", true)
picker("reject", false)
picker("selectattr", true, true)
picker("rejectattr", false, true)

function M.map(v, a, kw)
  local f, next_of
  local function prepare()
    if a.n == 0 and kw and kw.attribute ~= nil then
      local default = kw.default
      for k in pairs(kw) do
        if k ~= "attribute" and k ~= "default" and k ~= 0 then
          fail("python", "Unexpected keyword argument '%s'", k)
        end
      end
      f = attribute_of(kw.attribute, default)
    else
      local name = a[1] ~= nil and base.text(a[1])
      if not name then fail("python", "map requires a filter argument") end
      local filters = require "pl.jinja.filters"
      if not filters[name] then fail("other", "No filter named '%s'.", name) end
      local rest = rest_of(a, 2)
      f = function(x) return filters[name](x, rest, kw) end
    end
    next_of = value.iter(v)
  end
  return value.gen(function()
    if not next_of then
      if kind(v) ~= "gen" and not value.truth(v) then
        next_of = function() end
      else
        prepare()
      end
    end
    local x = next_of()
    if x == nil then return nil end
    step()
    return f(x)
  end)
end

return M
