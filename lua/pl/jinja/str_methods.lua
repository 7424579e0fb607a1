-- Methods of str. Each takes the text, the arguments, and the arguments by name.
local base, text, value, args = require "pl.jinja.base", require "pl.jinja.text", require "pl.jinja.value",
  require "pl.jinja.args"
local fail, none, list = base.fail, base.none, base.list
local take, txt, int = args.take, args.text, args.int
local MAX = 2 ^ 24 -- bytes of a text that padding makes
local M = {}

local function simple(name, f)
  M[name] = function(s, a, kw)
    take(name .. "()", {}, a, kw)
    return f(s)
  end
end
for _, name in ipairs { "upper", "lower", "title", "capitalize", "swapcase", "casefold" } do
  simple(name, text[name])
end

for _, name in ipairs { "strip", "lstrip", "rstrip" } do
  M[name] = function(s, a, kw)
    local chars = take(name .. "()", { "chars" }, a, kw)
    return text[name](s, txt(name, chars, true))
  end
end

for name, cut in pairs { split = text.split, rsplit = text.rsplit } do
  M[name] = function(s, a, kw)
    local sep, most = take(name .. "()", { "sep", "maxsplit" }, a, kw)
    sep = txt(name, sep, true)
    if sep == "" then fail("python", "empty separator") end
    local out, n = cut(s, sep, int(name, most, -1))
    return list(out, n)
  end
end

function M.splitlines(s, a, kw)
  local keep = take("splitlines()", { "keepends" }, a, kw)
  local out, n = text.splitlines(s, keep ~= nil and value.truth(keep))
  return list(out, n)
end

-- The part of s that start and end (characters) leave, and its first character's index; nil if start is beyond.
local function part(name, s, from, to)
  if (from == nil or from == none) and (to == nil or to == none) then return s, 0 end
  local n = text.len(s)
  from = from == none and 0 or int(name, from, 0)
  to = to == none and n or int(name, to, n)
  if from < 0 then from = math.max(0, from + n) end
  if to < 0 then to = math.max(0, to + n) end
  if from > n or from > to then return nil, from end
  return text.sub(s, from, math.min(to, n)), from
end

for name, side in pairs { startswith = 1, endswith = -1 } do
  M[name] = function(s, a, kw)
    local what, from, to = take(name .. "()", { "prefix!", "start", "end" }, a, kw)
    s = part(name, s, from, to)
    local function has(p)
      if not base.text(p) then
        fail("python", "%s first arg must be str or a tuple of str, not %s", name, base.type_name(p))
      end
      p = base.text(p)
      if not s then return false end
      if side == 1 then return s:sub(1, #p) == p end
      return #p <= #s and s:sub(#s - #p + 1) == p
    end
    if base.kind(what) == "tuple" then
      for i = 1, what.n do if has(what[i]) then return true end end
      return false
    end
    return has(what)
  end
end

local function finder(name, last, must)
  M[name] = function(s, a, kw)
    local what, from, to = take(name .. "()", { "sub!", "start", "end" }, a, kw)
    what = txt(name, what)
    local p, skipped = part(name, s, from, to)
    local at
    if p then
      base.step(math.floor(#p / 256))
      if last then at = text.rfind(p, what) else at = p:find(what, 1, true) end
    end
    if not at then
      if must then fail("python", "substring not found") end
      return -1
    end
    return skipped + text.index(p, at)
  end
end
finder("find")
finder("rfind", true)
finder("index", false, true)
finder("rindex", true, true)

function M.count(s, a, kw)
  local what, from, to = take("count()", { "sub!", "start", "end" }, a, kw)
  what = txt("count", what)
  local p, n = part("count", s, from, to), 0
  if not p then return 0 end
  if what == "" then return text.len(p) + 1 end
  for _ in text.each(p, what) do n = n + 1 end
  return n
end

function M.replace(s, a, kw)
  local old, new, most = take("replace()", { "old!", "new!", "count" }, a, kw)
  return text.replace(s, txt("replace", old), txt("replace", new), int("replace", most, -1))
end

function M.removeprefix(s, a, kw)
  local p = txt("removeprefix", (take("removeprefix()", { "prefix!" }, a, kw)))
  return s:sub(1, #p) == p and s:sub(#p + 1) or s
end
function M.removesuffix(s, a, kw)
  local p = txt("removesuffix", (take("removesuffix()", { "suffix!" }, a, kw)))
  return #p > 0 and #p <= #s and s:sub(-#p) == p and s:sub(1, -#p - 1) or s
end

function M.partition(s, a, kw)
  local sep = txt("partition", (take("partition()", { "sep!" }, a, kw)))
  if sep == "" then fail("python", "empty separator") end
  local i, j = s:find(sep, 1, true)
  base.charge(#s)
  if not i then return base.tuple(s, "", "") end
  return base.tuple(s:sub(1, i - 1), sep, s:sub(j + 1))
end
function M.rpartition(s, a, kw)
  local sep = txt("rpartition", (take("rpartition()", { "sep!" }, a, kw)))
  if sep == "" then fail("python", "empty separator") end
  local i = text.rfind(s, sep)
  base.charge(#s)
  if not i then return base.tuple("", "", s) end
  return base.tuple(s:sub(1, i - 1), sep, s:sub(i + #sep))
end

--- The text between `left` and `right` fill characters.
local function pad(s, left, right, fill)
  left, right = math.max(0, left), math.max(0, right)
  if (left + right) * #fill + #s > MAX then fail("limit", "a text of more than %d bytes", MAX) end
  base.charge((left + right) * #fill + #s)
  return fill:rep(left) .. s .. fill:rep(right)
end
for name, sides in pairs {
  ljust = function(room) return 0, room end, rjust = function(room) return room, 0 end,
  center = function(room, width)
    local left = math.floor(room / 2) + (room % 2 == 1 and width % 2 == 1 and 1 or 0)
    return left, room - left
  end } do
  M[name] = function(s, a, kw)
    local width, fill = take(name .. "()", { "width!", "fillchar" }, a, kw)
    fill = fill and txt(name, fill) or " "
    width = int(name, width)
    if text.len(fill) ~= 1 then fail("python", "The fill character must be exactly one character long") end
    local room = width - text.len(s)
    if room <= 0 then return s end
    local left, right = sides(room, width)
    return pad(s, left, right, fill)
  end
end

function M.zfill(s, a, kw)
  local width = int("zfill", (take("zfill()", { "width!" }, a, kw)))
  local sign, rest = s:match "^([+-]?)(.*)$"
  return sign .. pad(rest, width - text.len(s), 0, "0")
end

function M.expandtabs(s, a, kw)
  local size = int("expandtabs", (take("expandtabs()", { "tabsize" }, a, kw)), 8)
  if size > 1000 then fail("limit", "expandtabs: a tab of more than 1000 characters") end
  local out, column = {}, 0
  for i, c in ipairs((text.chars(s))) do
    if c == "\t" then
      local n = size > 0 and size - column % size or 0
      base.charge(n)
      out[i], column = (" "):rep(n), column + n
    else
      out[i], column = c, (c == "\n" or c == "\r") and 0 or column + 1
    end
  end
  return table.concat(out)
end

--- Join texts; the elements must be texts.
function M.join(s, a, kw)
  local what = take("join()", { "iterable!" }, a, kw)
  if not value.is_iterable(what) then fail("python", "can only join an iterable") end
  local parts, n = {}, 0
  for v in value.iter(what) do
    base.step()
    n = n + 1
    parts[n] = base.text(v)
    if not parts[n] then
      fail("python", "sequence item %d: expected str instance, %s found", n - 1, base.type_name(v))
    end
    base.charge(#parts[n] + #s + 16)
  end
  return table.concat(parts, s)
end

local function is(name, test)
  M[name] = function(s, a, kw)
    take(name .. "()", {}, a, kw)
    return text.all(s, test)
  end
end
is("isalpha", function(g) return g >= 1 and g <= 5 end)
is("isdigit", function(g, c) return g == 9 or g == 11 and c:find "^[\194\226]" ~= nil end)
is("isdecimal", function(g) return g == 9 end)
is("isnumeric", function(g) return g >= 9 and g <= 11 end)
is("isalnum", function(g) return g >= 1 and g <= 5 or g >= 9 and g <= 11 end)
is("isspace", function(_, c) return text.is_space(c) end)
function M.isprintable(s) return s == "" or text.all(s, function(_, c) return text.printable(c) end) end
function M.isascii(s) return text.ascii(s) end
function M.isidentifier(s) return s:find "^[%a_\128-\255][%w_\128-\255]*$" ~= nil end
local function cased(name, wrong)
  M[name] = function(s, a, kw)
    take(name .. "()", {}, a, kw)
    local seen = false
    for _, c in ipairs((text.chars(s))) do
      local g = text.category(c)
      if g == wrong or g == 3 then return false end
      if g == 1 or g == 2 then seen = true end
    end
    return seen
  end
end
cased("isupper", 2)
cased("islower", 1)
function M.istitle(s)
  local before, seen = false, false
  for _, c in ipairs((text.chars(s))) do
    local g = text.category(c)
    if g == 1 or g == 3 then
      if before then return false end
      before, seen = true, true
    elseif g == 2 then
      if not before then return false end
      seen = true
    else
      before = false
    end
  end
  return seen
end

function M.format(s, a, kw) return require("pl.jinja.format").format(s, a, kw or {}) end
function M.format_map(s, a, kw)
  local d = take("format_map()", { "mapping!" }, a, kw)
  local named = {}
  if base.kind(d) ~= "dict" then fail("python", "format_map: want a mapping") end
  for i = 1, d.n do if type(d.keys[i]) == "string" then named[d.keys[i]] = d.at[d.keys[i]] end end
  return require("pl.jinja.format").format(s, { n = 0 }, named)
end

return M
