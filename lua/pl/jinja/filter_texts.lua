-- Filters of texts and numbers (see filters.lua).
local base, text, value = require "pl.jinja.base", require "pl.jinja.text", require "pl.jinja.value"
local object, arith, args = require "pl.jinja.object", require "pl.jinja.arith", require "pl.jinja.args"
local strings, json = require "pl.jinja.str_methods", require "pl.jinja.json"
local fail, kind, none, charge, step = base.fail, base.kind, base.none, base.charge, base.step
local int = args.int
local M = {}

local filter = args.definer(M)
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

return M
