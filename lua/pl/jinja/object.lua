-- Attributes, items, calls: what a template may reach of a value. A name beginning with an underscore is never
-- an attribute, and what would change a value is there only for values that the template made.
local base, text, value, args = require "pl.jinja.base", require "pl.jinja.text", require "pl.jinja.value",
  require "pl.jinja.args"
local strings = require "pl.jinja.str_methods"
local fail, none, kind, take = base.fail, base.none, base.kind, args.take
local M = {}

local function set(names)
  local t = {}
  for n in names:gmatch "%S+" do t[n] = true end
  return t
end

-- Attributes that Python's types have: `d.items` is the method even where the dict has such a key, and `d['items']` is
-- it where the dict has none.
local has = {
  str = set [[capitalize casefold center count encode endswith expandtabs find format format_map index isalnum isalpha
    isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join ljust lower lstrip
    maketrans partition removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip split splitlines
    startswith strip swapcase title translate upper zfill]],
  list = set "append clear copy count extend index insert pop remove reverse sort",
  tuple = set "count index",
  dict = set "clear copy fromkeys get items keys pop popitem setdefault update values",
  int = set "as_integer_ratio bit_count bit_length conjugate denominator from_bytes imag numerator real to_bytes",
  float = set "as_integer_ratio conjugate fromhex hex imag is_integer real",
  range = set "count index start step stop",
  view = set "isdisjoint mapping",
  gen = set "close send throw",
  macro = set "arguments caller catch_kwargs catch_varargs explicit_caller name",
  cycler = set "current items next pos reset",
  joiner = set "sep used",
  loop = set [[index index0 revindex revindex0 first last length depth depth0 previtem nextitem cycle changed]],
  slice = set "indices start step stop",
}
has.bool, has.big, has.markup = has.int, has.int, has.str
local changes = { list = set "append clear pop reverse insert sort extend remove",
  dict = set "clear pop popitem setdefault update" }

local lists, dicts = {}, {}

local function index_of(what, v, n)
  local i = args.int(what, v)
  return i < 0 and i + n or i
end

function lists.append(l, a, kw)
  local v = take("append()", { "object!" }, a, kw)
  base.charge(32)
  l.n = l.n + 1
  l[l.n] = v
  return none
end
function lists.extend(l, a, kw)
  local other = value.to_list((take("extend()", { "iterable!" }, a, kw)))
  for i = 1, other.n do l[l.n + i] = other[i] end
  l.n = l.n + other.n
  return none
end
function lists.insert(l, a, kw)
  local at, v = take("insert()", { "index!", "object!" }, a, kw)
  at = math.max(0, math.min(index_of("insert", at, l.n), l.n))
  base.step(l.n - at)
  base.charge(32)
  table.insert(l, at + 1, v)
  l.n = l.n + 1
  return none
end
function lists.pop(l, a, kw)
  local at = take("pop()", { "index" }, a, kw)
  if l.n == 0 then fail("python", "pop from empty list") end
  at = at == nil and l.n - 1 or index_of("pop", at, l.n)
  if at < 0 or at >= l.n then fail("python", "pop index out of range") end
  base.step(l.n - at)
  l.n = l.n - 1
  return table.remove(l, at + 1)
end
local function position(l, v, from, to)
  for i = from or 1, to or l.n do
    base.step()
    if value.eq(l[i], v) then return i end
  end
end
function lists.remove(l, a, kw)
  local at = position(l, (take("remove()", { "value!" }, a, kw)))
  if not at then fail("python", "list.remove(x): x not in list") end
  base.step(l.n)
  table.remove(l, at)
  l.n = l.n - 1
  return none
end
function lists.clear(l, a, kw)
  take("clear()", {}, a, kw)
  for i = l.n, 1, -1 do l[i] = nil end
  l.n = 0
  return none
end
function lists.reverse(l, a, kw)
  take("reverse()", {}, a, kw)
  base.step(l.n)
  for i = 1, math.floor(l.n / 2) do l[i], l[l.n + 1 - i] = l[l.n + 1 - i], l[i] end
  return none
end
function lists.sort(l, a, kw)
  local key, reverse = take("sort()", { "key", "reverse" }, { n = 0 }, kw)
  if a.n > 0 then fail("python", "sort() takes no positional arguments") end
  local sorted = M.sorted(l, key and key ~= none and function(v) return M.call(key, { n = 1, v }) end,
    reverse and value.truth(reverse))
  for i = 1, l.n do l[i] = sorted[i] end
  return none
end
function lists.copy(l, a, kw)
  take("copy()", {}, a, kw)
  return value.to_list(l)
end
function lists.count(l, a, kw)
  local v, n = take("count()", { "value!" }, a, kw), 0
  for i = 1, l.n do
    base.step()
    if value.eq(l[i], v) then n = n + 1 end
  end
  return n
end
function lists.index(l, a, kw)
  local v, from, to = take("index()", { "value!", "start", "stop" }, a, kw)
  from = from and math.max(0, index_of("index", from, l.n)) or 0
  to = to and math.min(l.n, index_of("index", to, l.n)) or l.n
  local at = position(l, v, from + 1, to)
  if not at then fail("python", "%s is not in list", value.repr(v)) end
  return at - 1
end

function dicts.get(d, a, kw)
  if kw and next(kw) then fail("python", "dict.get() takes no keyword arguments") end
  local k, default = take("get()", { "key!", "default" }, a)
  local v = d.at[base.hash(k)]
  if v ~= nil then return v end
  if default == nil then return none end
  return default
end
for _, what in ipairs { "keys", "values", "items" } do
  dicts[what] = function(d, a, kw)
    take(what .. "()", {}, a, kw)
    base.charge(48)
    return { kind = "view", what = what, dict = d }
  end
end
function dicts.copy(d, a, kw)
  take("copy()", {}, a, kw)
  return M.update(base.dict(), { n = 1, d })
end
function dicts.pop(d, a, kw)
  local k, default = take("pop()", { "key!", "default" }, a, kw)
  local v = base.take(d, k)
  if v == nil then v = default end
  if v == nil then fail("python", "KeyError: %s", value.repr(k)) end
  return v
end
function dicts.popitem(d, a, kw)
  take("popitem()", {}, a, kw)
  if d.n == 0 then fail("python", "'popitem(): dictionary is empty'") end
  local k = d.keys[d.n]
  return base.tuple(k, base.take(d, k))
end
function dicts.setdefault(d, a, kw)
  local k, default = take("setdefault()", { "key!", "default" }, a, kw)
  local v = d.at[base.hash(k)]
  if v == nil then
    v = default == nil and none or default
    base.put(d, k, v)
  end
  return v
end
function dicts.clear(d, a, kw)
  take("clear()", {}, a, kw)
  d.n, d.keys, d.at = 0, {}, {}
  return none
end
--- Put another mapping's, or pairs', entries and named ones into d.
function M.update(d, a, kw)
  if a.n > 1 then fail("python", "expected at most 1 argument, got %d", a.n) end
  local other = a[1]
  if other ~= nil and kind(other) == "dict" then
    base.step(other.n)
    for i = 1, other.n do base.put(d, other.keys[i], other.at[base.hash(other.keys[i])]) end
  elseif other ~= nil and kind(other) == "undefined" then
    base.use_undefined(other)
  elseif other ~= nil then
    for pair in value.iter(other) do
      base.step()
      local p = value.to_list(pair)
      if p.n ~= 2 then
        fail("python", "dictionary update sequence element has length %d; 2 is required", p.n)
      end
      base.put(d, p[1], p[2])
    end
  end
  if kw then
    for _, k in ipairs(kw[0] or {}) do base.put(d, k, kw[k]) end
  end
  return d
end
function dicts.update(d, a, kw)
  M.update(d, a, kw)
  return none
end

local numbers = {}
function numbers.bit_length(v)
  local n = math.abs(base.int(v))
  local bits = 0
  while n >= 1 do n, bits = math.floor(n / 2), bits + 1 end
  return bits
end
function numbers.is_integer(v) return v.v % 1 == 0 end
function numbers.conjugate(v) return v end

local function of_list(name) -- of a range: as of the list of its elements
  return function(r, a, kw) return lists[name](value.to_list(r), a, kw) end
end
local tables = { range = { count = of_list "count", index = of_list "index" },
  list = lists, tuple = { count = lists.count, index = lists.index }, dict = dicts, str = strings,
  markup = strings, int = numbers, bool = numbers, float = numbers }

-- Values of attributes that are no methods.
local fields = {
  int = { real = function(v) return v end, numerator = function(v) return v end, imag = function() return 0 end,
    denominator = function() return 1 end },
  float = { real = function(v) return v end, imag = function() return base.float(0) end },
  macro = { name = function(v) return v.name end },
}
local ends = { start = function(v) return v.from end, stop = function(v) return v.to end,
  step = function(v) return v.by end }
fields.range, fields.slice = ends, ends
fields.bool = { real = function(v) return v and 1 or 0 end, numerator = function(v) return v and 1 or 0 end,
  imag = function() return 0 end, denominator = function() return 1 end }

M.methods, M.fields = tables, fields -- more kinds are added by the files that make them

-- The Python attribute of v with that name, or nil.
local function attribute(v, k, name)
  if k == "ns" then return v.dict.at[name] end
  local names = has[k]
  if name:sub(1, 1) == "_" then
    if name:find "^__.*__$" then
      return base.undefined(name, v, ("access to attribute '%s' of '%s' object is unsafe."):format(name,
        base.type_name(v)), "sandbox")
    end
    return nil
  end
  if not (names and names[name]) then
    if k == "tuple" and v.attributes then return v.attributes[name] end -- of groupby's pairs
    return nil
  end
  if changes[k] and changes[k][name] and not v.own or k == "gen" then
    return base.undefined(name, v, ("access to attribute '%s' of '%s' object is unsafe."):format(name,
      base.type_name(v)), "sandbox")
  end
  local get = fields[k] and fields[k][name]
  if get then return get(v) end
  base.charge(64)
  return { kind = "method", self = v, name = name, call = tables[k] and tables[k][name] }
end

local function item(v, k, key)
  if k == "dict" then
    local kk = type(key)
    if kk == "string" or kk == "number" then return v.at[key] end
    kk = kind(key)
    -- not hashable: Jinja makes of that an undefined value, but leaves slices to Python
    if kk == "list" or kk == "dict" or kk == "view" then return nil end
    return v.at[base.hash(key)]
  end
  local s = (k == "str" or k == "markup") and base.text(v)
  if not s and k ~= "list" and k ~= "tuple" and k ~= "range" then
    if kind(key) == "slice" then fail("python", "'%s' object is not subscriptable", base.type_name(v)) end
    return nil
  end
  local i = base.int(key)
  if i then
    local n = s and text.len(s) or v.n
    if i < 0 then i = i + n end
    if i < 0 or i >= n then return nil end
    if s then return text.sub(s, i, i + 1) end
    if k == "range" then return v.from + i * v.by end
    return v[i + 1]
  elseif kind(key) == "slice" then
    local from, count, by, to = value.bounds(key, s and text.len(s) or v.n)
    if not from then
      fail("python", count == "zero" and "slice step cannot be zero" or "slice indices must be integers or None")
    end
    if s then
      local r
      if by == 1 then
        r = text.sub(s, from, from + count)
      else
        local cs, out = text.chars(s), {}
        for j = 0, count - 1 do out[j + 1] = cs[from + j * by + 1] end
        r = table.concat(out)
      end
      return k == "markup" and { kind = "markup", s = r } or r
    end
    base.step(count)
    if k == "range" then
      return { kind = "range", from = v.from + from * v.by, to = v.from + to * v.by, by = v.by * by, n = count }
    end
    local out = {}
    for j = 0, count - 1 do out[j + 1] = v[from + j * by + 1] end
    return base.list(out, count, k)
  end
end

--- v.name
function M.getattr(v, name)
  local k = kind(v)
  if k == "undefined" then base.use_undefined(v) end
  local r = attribute(v, k, name)
  if r ~= nil then return r end
  if k == "dict" then
    r = v.at[name]
    if r ~= nil then return r end
  end
  return base.undefined(name, v)
end

--- v[key]
function M.getitem(v, key)
  local k = kind(v)
  if k == "undefined" then base.use_undefined(v) end
  local r = item(v, k, key)
  if r ~= nil then return r end
  local name = base.text(key)
  if name then
    r = attribute(v, k, name)
    if r ~= nil then return r end
  end
  return base.undefined(key, v)
end

--- v(...): a = { n, [1..n] }, kw = { name = value, [0] = names in order } or nil.
function M.call(v, a, kw)
  base.step()
  local k = kind(v)
  if k == "method" then
    if not v.call then fail("other", "'%s' of '%s' is not known here", v.name, base.type_name(v.self)) end
    local self = v.self
    if kind(self) ~= "markup" then return v.call(self, a, kw) end
    return M.call_markup(v, self, a, kw)
  elseif k == "func" or k == "macro" or k == "loop" or k == "joiner" then
    return v.call(a, kw, v)
  elseif k == "undefined" then
    base.use_undefined(v)
  end
  fail("python", "'%s' object is not callable", base.type_name(v))
end

local escapes = { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ["'"] = "&#39;", ['"'] = "&#34;" }
function M.escape(s)
  local r = s:gsub("[&<>'\"]", escapes)
  base.charge(#r)
  return r
end
function M.markup(s) return { kind = "markup", s = s } end

--- A method of a Markup: text arguments are escaped, texts that come out are Markup again.
function M.call_markup(v, self, a, kw)
  local safe = { n = a.n }
  local function escaped(x) return type(x) == "string" and M.escape(x) or x end
  for i = 1, a.n do safe[i] = escaped(a[i]) end
  if v.name == "join" and a.n == 1 and value.is_iterable(a[1]) then
    local l = value.to_list(a[1])
    for i = 1, l.n do l[i] = escaped(base.text(l[i]) and l[i] or value.str(l[i])) end
    safe[1] = l
  end
  local named
  if kw then
    named = {}
    for k, x in pairs(kw) do named[k] = escaped(x) end
  end
  local function wrap(x)
    if type(x) == "string" then return M.markup(x) end
    if type(x) == "table" and (x.kind == "list" or x.kind == "tuple") then
      for i = 1, x.n do x[i] = wrap(x[i]) end
    end
    return x
  end
  return wrap(v.call(self.s, safe, named))
end

-- A stable sort by `<` of keys; Python raises where two cannot be compared.
function M.sorted(v, key, reverse)
  local l = value.to_list(v)
  local n = l.n
  local keyed = {}
  for i = 1, n do keyed[i] = { l[i], l[i] } end
  if key then for i = 1, n do keyed[i][1] = key(l[i]) end end
  base.charge(64 * n)
  -- merge sort, bottom up: stable, and its callbacks stay in Lua
  local a, b, width = keyed, {}, 1
  while width < n do
    for lo = 1, n, 2 * width do
      local mid, hi = math.min(lo + width, n + 1), math.min(lo + 2 * width, n + 1)
      local i, j = lo, mid
      for k = lo, hi - 1 do
        base.step()
        local right
        if i >= mid then right = true
        elseif j >= hi then right = false
        elseif reverse then right = value.lt(a[i][1], a[j][1])
        else right = value.lt(a[j][1], a[i][1]) end
        if right then b[k], j = a[j], j + 1 else b[k], i = a[i], i + 1 end
      end
    end
    a, b, width = b, a, 2 * width
  end
  for i = 1, n do l[i] = a[i][2] end
  return l
end

return M
