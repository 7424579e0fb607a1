-- Filters: `x | NAME(...)`. Each takes the value, the arguments { n, ... } and the arguments by name.
local base, text, value = require "pl.jinja.base", require "pl.jinja.text", require "pl.jinja.value"
local object, arith, args = require "pl.jinja.object", require "pl.jinja.arith", require "pl.jinja.args"
local strings, json, tests = require "pl.jinja.str_methods", require "pl.jinja.json", require "pl.jinja.tests"
local fail, kind, none, charge, step = base.fail, base.kind, base.none, base.charge, base.step
local take, int = args.take, args.int
local M = {}

local function filter(name, names, f)
  M[name] = function(v, a, kw) return f(v, take(name .. "()", names, a, kw)) end
end
local function truth(v) return v ~= nil and value.truth(v) end

-- A value as text; Markup stays what it is.
local function soft(v)
  if kind(v) == "markup" then return v end
  return value.str(v)
end
-- A method of str on the text of v.
local function method(v, name, ...)
  local s = soft(v)
  local a = { n = select("#", ...), ... }
  if type(s) == "string" then return strings[name](s, a) end
  return object.call_markup({ name = name, call = strings[name] }, s, a)
end

-- Texts ------------------------------------------------------------------------------------------------------------

for _, name in ipairs { "upper", "lower", "capitalize" } do
  filter(name, {}, function(v) return method(v, name) end)
end
filter("title", {}, function(v) -- words begin behind spaces, hyphens and brackets
  local out, word = {}, {}
  local function close()
    if word[1] then out[#out + 1] = text.upper(word[1]) .. text.lower(table.concat(word, "", 2)) end
    word = {}
  end
  for _, c in ipairs((text.chars(value.str(v)))) do
    if text.is_space(c) or c:find "^[-({[<]$" then
      close()
      out[#out + 1] = c
    else
      word[#word + 1] = c
    end
  end
  close()
  return table.concat(out)
end)
filter("trim", { "chars" }, function(v, chars) return method(v, "strip", chars or none) end)
filter("string", {}, soft)
filter("safe", {}, function(v) return kind(v) == "markup" and v or object.markup(value.str(v)) end)
local function escape(v) return kind(v) == "markup" and v or object.markup(object.escape(value.str(v))) end
filter("escape", {}, escape)
M.e = M.escape
filter("forceescape", {}, function(v) return object.markup(object.escape(value.str(v))) end)
filter("striptags", {}, function(v)
  local s = text.replace(value.str(v), "<!--", "\0<")
  s = s:gsub("%z<.-%-%->", ""):gsub("%z<", "<!--"):gsub("<[^>]*>", "")
  local parts, n = text.split(s)
  s = table.concat(parts, " ", 1, n)
  return (s:gsub("&lt;", "<"):gsub("&gt;", ">"):gsub("&#34;", '"'):gsub("&#39;", "'"):gsub("&quot;", '"')
    :gsub("&amp;", "&"))
end)
filter("replace", { "old!", "new!", "count" }, function(v, old, new, count)
  return method(v, "replace", value.str(old), value.str(new), count == none and -1 or count or -1)
end)
filter("center", { "width" }, function(v, width) return method(v, "center", width or 80) end)
filter("wordcount", {}, function(v) -- runs of letters, digits and underscores
  local n, within = 0, false
  for _, c in ipairs((text.chars(value.str(v)))) do
    local g = text.category(c)
    local word = c == "_" or g >= 1 and g <= 5 or g >= 9 and g <= 11
    if word and not within then n = n + 1 end
    within = word
  end
  return n
end)
filter("indent", { "width", "first", "blank" }, function(v, width, first, blank)
  local by = width == nil and "    " or base.text(width) or (" "):rep(math.min(int("indent", width), 1000))
  if kind(v) == "undefined" then base.use_undefined(v) end
  local s = args.text("indent", v) .. "\n"
  local lines, n = text.splitlines(s)
  if not truth(blank) then
    for i = 2, n do
      charge(#by)
      if lines[i] ~= "" then lines[i] = by .. lines[i] end
    end
    s = table.concat(lines, "\n")
  else
    charge(#by * n)
    s = table.concat(lines, "\n" .. by)
  end
  if truth(first) then s = by .. s end
  charge(#s)
  return kind(v) == "markup" and object.markup(s) or s
end)
filter("truncate", { "length", "killwords", "end", "leeway" }, function(v, length, kill, tail, leeway)
  local s = base.text(v)
  length, tail = int("truncate", length, 255), tail and args.text("truncate", tail) or "..."
  leeway = leeway and leeway ~= none and int("truncate", leeway) or 5
  if length < text.len(tail) then fail("python", "expected length >= %d, got %d", text.len(tail), length) end
  if leeway < 0 then fail("python", "expected leeway >= 0, got %d", leeway) end
  local n = value.len(v)
  if n <= length + leeway then return v end
  if not s then fail("python", "truncate: want a text") end
  local cut = text.sub(s, 0, length - text.len(tail))
  if not truth(kill) then
    local at = text.rfind(cut, " ")
    if at then cut = cut:sub(1, at - 1) end
  end
  return cut .. tail
end)
M.format = function(v, a, kw)
  if a.n > 0 and kw and next(kw) then
    fail("python", "can't handle positional and keyword arguments at the same time")
  end
  local with = base.tuple(unpack(a, 1, a.n))
  if kw and next(kw) then with = object.update(base.dict(), { n = 0 }, kw) end
  return arith.mod(soft(v), with)
end

local function percent(s, safe)
  local r = s:gsub("[^%w_.~" .. safe .. "-]", function(c) return ("%%%02X"):format(c:byte()) end)
  charge(#r)
  return r
end
filter("urlencode", {}, function(v)
  if base.text(v) or not value.is_iterable(v) then return percent(value.str(v), "/") end
  local parts = {}
  local pairs_of = kind(v) == "dict" and { kind = "view", what = "items", dict = v } or v
  for p in value.iter(pairs_of) do
    step()
    local l = value.to_list(p)
    if l.n ~= 2 then fail("python", "urlencode: want pairs") end
    parts[#parts + 1] = percent(value.str(l[1]), ""):gsub("%%20", "+") .. "="
      .. percent(value.str(l[2]), ""):gsub("%%20", "+")
  end
  return table.concat(parts, "&")
end)
filter("xmlattr", { "autospace" }, function(v, space)
  if kind(v) ~= "dict" then fail("python", "xmlattr: want a mapping") end
  local out = {}
  for i = 1, v.n do
    local k, x = v.keys[i], v.at[base.hash(v.keys[i])]
    if x ~= none and kind(x) ~= "undefined" then
      local name = value.str(k)
      if name:find "[%s/>=]" then fail("python", "Invalid character in attribute name: %s", value.repr(k)) end
      out[#out + 1] = ('%s="%s"'):format(escape(k).s, escape(x).s)
    end
  end
  local s = table.concat(out, " ")
  if (space == nil or truth(space)) and s ~= "" then s = " " .. s end
  charge(#s)
  return s
end)
filter("pprint", {}, function(v)
  local function sorted(x)
    local k = kind(x)
    if k == "dict" then
      local out = base.dict()
      local keys = object.sorted(x)
      for i = 1, keys.n do base.put(out, keys[i], sorted(x.at[base.hash(keys[i])])) end
      return out
    elseif k == "list" or k == "tuple" then
      local out = {}
      for i = 1, x.n do out[i] = sorted(x[i]) end
      return base.list(out, x.n, k)
    end
    return x
  end
  local s = value.repr(sorted(v))
  if text.len(s) > 80 then fail("other", "pprint: more than a line of 80 characters is not known here") end
  return s
end)
filter("filesizeformat", { "binary" }, function(v, binary)
  local n = base.number(v) or tonumber(base.text(v) or "")
  if not n then fail("python", "filesizeformat: want a number") end
  local unit = truth(binary) and 1024 or 1000
  if n == 1 then return "1 Byte" elseif n < unit then return ("%d Bytes"):format(n) end
  local names = truth(binary) and { "KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB" }
    or { "kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB" }
  for i, name in ipairs(names) do
    if n < unit ^ (i + 1) or i == #names then return ("%.1f %s"):format(unit * n / unit ^ (i + 1), name) end
  end
end)
local function wrapped(line, width, break_long, hyphens)
  local out, cur, len = {}, {}, 0
  local function flush()
    while #cur > 0 and cur[#cur]:find "^%s+$" do cur[#cur] = nil end
    if #cur > 0 then out[#out + 1] = table.concat(cur) end
    cur, len = {}, 0
  end
  local pieces, at = {}, 1
  while at <= #line do
    local a, b = line:find("^%s+", at)
    if not a then
      a, b = line:find("^%S+", at)
      local dash = hyphens and line:match("^[%w]+[%w]%-()[%a]", at)
      if dash then b = dash - 1 end
    end
    pieces[#pieces + 1] = line:sub(a, b)
    at = b + 1
  end
  local i = 1
  while i <= #pieces do
    step()
    local p = pieces[i]
    local n = text.len(p)
    if len == 0 and #out > 0 and p:find "^%s+$" then
      i = i + 1
    elseif len + n <= width then
      cur[#cur + 1], len, i = p, len + n, i + 1
    elseif n > width and break_long then
      local room = math.max(1, width - len)
      if len < width then
        cur[#cur + 1] = text.sub(p, 0, room)
        pieces[i] = text.sub(p, room, n)
      end
      flush()
    elseif n > width and len == 0 then
      cur[1], len, i = p, n, i + 1
      flush()
    else
      flush()
    end
  end
  flush()
  return out
end
filter("wordwrap", { "width", "break_long_words", "wrapstring", "break_on_hyphens" },
  function(v, width, long, with, hyphens)
    width = int("wordwrap", width, 79)
    if width < 1 then fail("python", "invalid width %d (must be > 0)", width) end
    with = with and with ~= none and args.text("wordwrap", with) or "\n"
    if kind(v) == "undefined" then base.use_undefined(v) end
    local lines, n = text.splitlines(args.text("wordwrap", v))
    for i = 1, n do
      lines[i] = table.concat(wrapped(lines[i], width, long == nil or truth(long), hyphens == nil or truth(hyphens)),
        with)
      charge(#lines[i])
    end
    return table.concat(lines, with)
  end)

filter("tojson", { "ensure_ascii", "indent", "separators", "sort_keys" }, function(v, ascii, indent, separators, sort)
  local o = { ascii = truth(ascii), sort = truth(sort) }
  if indent and indent ~= none then
    o.indent = base.text(indent) or (" "):rep(math.max(0, math.min(int("tojson", indent), 1000)))
  end
  if separators and separators ~= none then
    local s = value.to_list(separators)
    if s.n ~= 2 then fail("python", "tojson: separators: want two") end
    o.item, o.key = args.text("tojson", s[1]), args.text("tojson", s[2])
  end
  return json.dump(v, o)
end)

-- Numbers ----------------------------------------------------------------------------------------------------------

-- An int from a text in a base, or nil.
local function parse_int(s, radix)
  s = text.strip(s):gsub("(%w)_(%w)", "%1%2")
  local sign, rest = s:match "^([+-]?)(.*)$"
  if radix == 16 then rest = rest:gsub("^0[xX]", "") elseif radix == 8 then rest = rest:gsub("^0[oO]", "")
  elseif radix == 2 then rest = rest:gsub("^0[bB]", "") end
  if rest == "" or not rest:find "^%w+$" then return nil end
  if radix == 10 then
    if not rest:find "^%d+$" then return nil end
    return json.integer((sign == "-" and "-" or "") .. rest:gsub("^0+(%d)", "%1"))
  end
  local n = 0
  for c in rest:gmatch "." do
    local d = tonumber(c, 36)
    if not d or d >= radix then return nil end
    n = n * radix + d
  end
  return base.whole(sign == "-" and -n or n)
end
local function parse_float(s)
  s = text.strip(s):gsub("(%d)_(%d)", "%1%2")
  local word = s:lower():match "^[+-]?(%a+)$"
  if word == "inf" or word == "infinity" then return s:sub(1, 1) == "-" and -math.huge or math.huge end
  if word == "nan" then return 0 / 0 end
  if not s:find "^[+-]?%.?%d[%d%.]*[eE]?[+-]?%d*$" or s:find "%.%d*%." then return nil end
  return tonumber(s)
end
local function to_int(f)
  if f ~= f or f == math.huge or f == -math.huge then return nil end
  return json.integer(value.int_repr(f < 0 and math.ceil(f) or math.floor(f)))
end

filter("int", { "default", "base" }, function(v, default, radix)
  local k = kind(v)
  local s = base.text(v)
  local r
  if s then
    r = parse_int(s, int("int", radix, 10))
    if not r then
      local f = parse_float(s)
      r = f and to_int(f)
    end
  elseif k == "int" or k == "big" then r = v
  elseif k == "bool" then r = v and 1 or 0
  elseif k == "float" then r = to_int(v.v)
  elseif k == "undefined" then base.use_undefined(v) end
  if r ~= nil then return r end
  return default == nil and 0 or default
end)
filter("float", { "default" }, function(v, default)
  local n = base.number(v)
  local s = base.text(v)
  if s then n = parse_float(s) end
  if kind(v) == "undefined" then base.use_undefined(v) end
  if n then return base.float(n) end
  return default == nil and base.float(0) or default
end)
filter("abs", {}, function(v)
  local k = kind(v)
  if k == "float" then return base.float(math.abs(v.v)) end
  if k == "big" then return base.big((v.s:gsub("^-", ""))) end
  local n = base.int(v)
  if n then return math.abs(n) end
  if k == "undefined" then base.use_undefined(v) end
  fail("python", "bad operand type for abs(): '%s'", base.type_name(v))
end)
-- To even on a tie, by the decimal digits that the float really has.
local function round_half_even(v, digits)
  if digits >= 0 then return tonumber(value.fixed(v, math.min(digits, 60))) end
  local unit = 10 ^ -digits
  local q = v / unit
  local f = math.floor(q)
  local d = q - f
  if d > 0.5 or d == 0.5 and f % 2 == 1 then f = f + 1 end
  return f * unit
end
filter("round", { "precision", "method" }, function(v, precision, how)
  local digits = int("round", precision, 0)
  how = how and args.text("round", how) or "common"
  if how ~= "common" and how ~= "ceil" and how ~= "floor" then
    fail("python", "method must be common, ceil or floor")
  end
  local n = base.number(v)
  if not n then
    if kind(v) == "undefined" then base.use_undefined(v) end
    fail("python", "type %s doesn't define __round__ method", base.type_name(v))
  end
  if digits > 300 or digits < -300 then fail("limit", "round: more than 300 digits") end
  if n ~= n or math.abs(n) == math.huge then
    if how == "common" then return v end
    fail("python", "cannot convert float infinity to integer")
  end
  if how == "common" then
    if kind(v) == "big" then fail("limit", "an integer beyond 2^53") end
    local r = round_half_even(n, digits)
    return kind(v) == "float" and base.float(r) or base.whole(r)
  end
  local unit = 10 ^ digits
  return base.float((math[how](n * unit) + 0) / unit)
end)

-- Sequences --------------------------------------------------------------------------------------------------------

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
      if not M[name] then fail("other", "No filter named '%s'.", name) end
      local rest = rest_of(a, 2)
      f = function(x) return M[name](x, rest, kw) end
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
