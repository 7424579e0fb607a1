-- Texts as Python has them: UTF-8 bytes counted, cut and changed by characters.
local base, abi = require "pl.jinja.base", require "pl.abi"
local C = abi.C
local find, sub, byte, gsub, char = string.find, string.sub, string.byte, string.gsub, string.char
local floor = math.floor
local step, charge = base.step, base.charge
local M = {}

function M.ascii(s) return not find(s, "[\128-\255]") end

--- Characters of a text.
function M.len(s)
  if not find(s, "[\128-\255]") then return #s end
  step(floor(#s / 256))
  local _, n = gsub(s, "[^\128-\191]", "%0")
  return n
end

function M.char(c)
  if c < 0x80 then return char(c) end
  if c < 0x800 then return char(0xC0 + floor(c / 64), 0x80 + c % 64) end
  if c < 0x10000 then return char(0xE0 + floor(c / 4096), 0x80 + floor(c / 64) % 64, 0x80 + c % 64) end
  return char(0xF0 + floor(c / 262144), 0x80 + floor(c / 4096) % 64, 0x80 + floor(c / 64) % 64, 0x80 + c % 64)
end

--- The code point of a character; of a byte that begins none, that byte's value.
function M.code(ch)
  local a, b, c, d = byte(ch, 1, 4)
  if a < 0xC0 or not b then return a end
  if a < 0xE0 then return (a - 0xC0) * 64 + b % 64 end
  if not c then return a end
  if a < 0xF0 then return (a - 0xE0) * 4096 + b % 64 * 64 + c % 64 end
  if not d then return a end
  return (a - 0xF0) % 8 * 262144 + b % 64 * 4096 + c % 64 * 64 + d % 64
end

-- A character: a byte and what continues it; continuation bytes at the very start stand alone.
local CHAR = "[%z\1-\127\192-\255][\128-\191]*"

--- All characters of a text, as a plain table, and how many.
function M.chars(s)
  local out, n = {}, 0
  step(#s)
  charge(16 * #s)
  local lead = find(s, "[^\128-\191]") or #s + 1
  if lead > 1 then n, out[1] = 1, sub(s, 1, lead - 1) end
  for c in s:gmatch(CHAR) do
    n = n + 1
    out[n] = c
  end
  return out, n
end

--- Byte at which character i (from 0) begins; #s + 1 beyond the end.
local function offset(s, i)
  local at = 1
  if i == 0 then return 1 end
  step(floor(i / 16))
  for _ = 1, i do
    at = find(s, "[^\128-\191]", at + 1)
    if not at then return #s + 1 end
  end
  return at
end

--- Characters from i up to, not including, j; both from 0 and within the text.
function M.sub(s, i, j)
  if j <= i then return "" end
  local r
  if not find(s, "[\128-\255]") then
    r = sub(s, i + 1, j)
  else
    local a = offset(s, i)
    local rest = sub(s, a)
    r = sub(rest, 1, offset(rest, j - i) - 1)
  end
  charge(#r)
  return r
end

--- Character index of a byte position.
function M.index(s, at) return M.len(sub(s, 1, at - 1)) end

-- White space ----------------------------------------------------------------------------------------------------

local SPACE = "[\t-\r\28-\31 ]"
local wide_space = { ["\194\133"] = true, ["\194\160"] = true, ["\225\154\128"] = true, ["\226\128\168"] = true,
  ["\226\128\169"] = true, ["\226\128\175"] = true, ["\226\129\159"] = true, ["\227\128\128"] = true }
for i = 0x80, 0x8A do wide_space["\226\128" .. char(i)] = true end
function M.is_space(c) return find(c, "^" .. SPACE .. "$") ~= nil or wide_space[c] == true end

-- Bytes of the white space that begins at `at`, or nil.
local function space_at(s, at)
  if find(s, "^" .. SPACE, at) then return 1 end
  if wide_space[sub(s, at, at + 1)] then return 2 end
  if wide_space[sub(s, at, at + 2)] then return 3 end
end
--- The first byte from `at` on that is no white space.
function M.skip_space(s, at)
  while true do
    local n = space_at(s, at)
    if not n then return at end
    at = at + n
  end
end
-- The last byte that is no white space.
local function last_of(s)
  local to = #s
  while to > 0 do
    if find(s, "^" .. SPACE, to) then to = to - 1
    elseif wide_space[sub(s, to - 1, to)] then to = to - 2
    elseif wide_space[sub(s, to - 2, to)] then to = to - 3
    else break end
  end
  return to
end

-- Strip a set of characters, given as a text.
local function set_of(chars)
  local set = {}
  for _, c in ipairs((M.chars(chars))) do set[c] = true end
  return set
end

function M.lstrip(s, chars)
  if not chars then return sub(s, M.skip_space(s, 1)) end
  local set, at = set_of(chars), 1
  while at <= #s do
    local stop = (find(s, "[^\128-\191]", at + 1) or #s + 1) - 1
    if not set[sub(s, at, stop)] then break end
    at = stop + 1
  end
  return sub(s, at)
end

function M.rstrip(s, chars)
  if not chars then return sub(s, 1, last_of(s)) end
  local set, to = set_of(chars), #s
  while to > 0 do
    local from = to
    while from > 1 and find(s, "^[\128-\191]", from) do from = from - 1 end
    if not set[sub(s, from, to)] then break end
    to = from - 1
  end
  return sub(s, 1, to)
end

function M.strip(s, chars) return M.rstrip(M.lstrip(s, chars), chars) end

-- Searching ------------------------------------------------------------------------------------------------------

--- Places of a plain text: an iterator over the first byte of each occurrence that does not overlap the one before.
function M.each(s, what)
  local at = 1
  return function()
    local a, b = find(s, what, at, true)
    if not a then return nil end
    step()
    at = b + 1
    return a, b
  end
end

function M.replace(s, old, new, most)
  if most and most < 0 then most = nil end
  local out, n, at, count = {}, 0, 1, 0
  if old == "" then
    local cs, len = M.chars(s)
    for i = 1, len + 1 do
      if not most or count < most then
        n, count = n + 1, count + 1
        charge(#new)
        out[n] = new
      end
      n = n + 1
      out[n] = cs[i] or ""
    end
    return table.concat(out)
  end
  if most == 0 then return s end
  for a, b in M.each(s, old) do
    charge(#new + a - at + 16)
    out[n + 1], out[n + 2] = sub(s, at, a - 1), new
    n, at, count = n + 2, b + 1, count + 1
    if count == most then break end
  end
  if n == 0 then return s end
  charge(#s - at)
  out[n + 1] = sub(s, at)
  return table.concat(out)
end

--- Parts between separators; sep nil: white space. most: splits at most, or nil. A plain table and how many.
function M.split(s, sep, most)
  local out, n = {}, 0
  if most and most < 0 then most = nil end
  local function add(part)
    charge(#part + 32)
    n = n + 1
    out[n] = part
  end
  if not sep then
    local at = M.skip_space(s, 1)
    while at <= #s do
      if most and n >= most then
        add(sub(s, at))
        break
      end
      step()
      local stop = at
      while stop <= #s and not space_at(s, stop) do
        stop = find(s, "[\t-\r\28-\31 \194\225-\227]", stop + 1) or #s + 1
      end
      add(sub(s, at, stop - 1))
      at = M.skip_space(s, stop)
    end
    return out, n
  end
  local at = 1
  for a, b in M.each(s, sep) do
    if most and n >= most then break end
    add(sub(s, at, a - 1))
    at = b + 1
  end
  add(sub(s, at))
  return out, n
end

--- The last byte position at which `what` occurs and ends no later than `to`; nil if nowhere.
function M.rfind(s, what, to)
  to = to or #s
  if what == "" then return to + 1 end
  local last = byte(what, -1)
  step(floor(to / 64))
  for e = to, #what, -1 do
    if byte(s, e) == last and sub(s, e - #what + 1, e) == what then return e - #what + 1 end
  end
end

function M.rsplit(s, sep, most)
  if not most or most < 0 then return M.split(s, sep) end
  local parts, k = {}, 0
  local to = #s
  if not sep then
    to = last_of(s)
    while k < most and to > 0 do
      step()
      local from = to
      while from > 0 do
        if find(s, "^" .. SPACE, from) or wide_space[sub(s, from - 1, from)] or wide_space[sub(s, from - 2, from)] then
          break
        end
        from = from - 1
      end
      k = k + 1
      parts[k] = sub(s, from + 1, to)
      to = last_of(sub(s, 1, from))
    end
    if to > 0 then k, parts[k + 1] = k + 1, sub(s, 1, to) end
  else
    while k < most do
      local a = M.rfind(s, sep, to)
      if not a then break end
      step()
      k = k + 1
      parts[k] = sub(s, a + #sep, to)
      to = a - 1
    end
    k, parts[k + 1] = k + 1, sub(s, 1, to)
  end
  charge(#s + 32 * k)
  local out = {}
  for i = 1, k do out[i] = parts[k + 1 - i] end
  return out, k
end

local breaks = { ["\226\128\168"] = true, ["\226\128\169"] = true, ["\194\133"] = true }
function M.splitlines(s, keep)
  local out, n, at, from = {}, 0, 1, 1
  charge(#s)
  while true do
    local a = find(s, "[\n-\r\28-\30\194\226]", at)
    if not a then break end
    step()
    local len = 1
    if sub(s, a, a + 1) == "\r\n" then len = 2
    elseif byte(s, a) >= 128 then
      len = breaks[sub(s, a, a + 1)] and 2 or breaks[sub(s, a, a + 2)] and 3 or 0
    end
    if len == 0 then
      at = a + 1
    else
      n = n + 1
      charge(32)
      out[n] = sub(s, from, keep and a + len - 1 or a - 1)
      at, from = a + len, a + len
    end
  end
  if from <= #s then
    n = n + 1
    out[n] = sub(s, from)
  end
  return out, n
end

-- Letters --------------------------------------------------------------------------------------------------------

local LOWER, UPPER, TITLE = 0, 1, 2
local function category(c) return C.pl_unicode_category(M.code(c)) end
M.category = category
-- Characters whose upper case is more than one: by hand, as the library knows one for one only.
local longer = { ["ß"] = { "SS", "Ss" }, ["ŉ"] = { "ʼN" }, ["ǰ"] = { "J̌" }, ["ΐ"] = { "Ϊ́" }, ["ΰ"] = { "Ϋ́" },
  ["և"] = { "ԵՒ", "Եւ" }, ["ẖ"] = { "H̱" }, ["ẗ"] = { "T̈" }, ["ẘ"] = { "W̊" }, ["ẙ"] = { "Y̊" },
  ["ẚ"] = { "Aʾ" }, ["ﬀ"] = { "FF", "Ff" }, ["ﬁ"] = { "FI", "Fi" }, ["ﬂ"] = { "FL", "Fl" },
  ["ﬃ"] = { "FFI", "Ffi" }, ["ﬄ"] = { "FFL", "Ffl" }, ["ﬅ"] = { "ST", "St" }, ["ﬆ"] = { "ST", "St" } }

local function map_char(c, how)
  if how == LOWER then
    if c == "İ" then return "i̇" end
  elseif longer[c] then
    return how == UPPER and longer[c][1] or longer[c][2] or longer[c][1]
  end
  return M.char(C.pl_unicode_case(M.code(c), how))
end

local function is_cased(c) -- letters with a case
  local g = category(c)
  return g == 1 or g == 2 or g == 3
end
local function ignorable(c) -- what a final sigma looks past
  local g = category(c)
  return g == 4 or g == 6 or g == 8 or g == 27 or g == 21 or c == "'" or c == "." or c == ":" or c == "·" or c == "’"
end

local function lower_of(cs, i)
  if cs[i] == "Σ" then -- final: a letter before it, none behind it
    local j, k = i - 1, i + 1
    while cs[j] and ignorable(cs[j]) do j = j - 1 end
    while cs[k] and ignorable(cs[k]) do k = k + 1 end
    return cs[j] and is_cased(cs[j]) and not (cs[k] and is_cased(cs[k])) and "ς" or "σ"
  end
  return map_char(cs[i], LOWER)
end

local function mapped(s, f)
  local cs, n = M.chars(s)
  local out = {}
  for i = 1, n do out[i] = f(cs, i) end
  local r = table.concat(out)
  charge(#r)
  return r
end

function M.upper(s)
  charge(#s)
  if M.ascii(s) then return s:upper() end
  return mapped(s, function(cs, i) return map_char(cs[i], UPPER) end)
end
function M.lower(s)
  charge(#s)
  if M.ascii(s) then return s:lower() end
  return mapped(s, lower_of)
end
--- For comparing without regard to case: near to Python's casefold.
function M.casefold(s)
  return mapped(s, function(cs, i)
    local c = cs[i]
    return c == "ς" and "σ" or longer[c] and M.lower(longer[c][1]) or map_char(c, LOWER)
  end)
end
function M.capitalize(s)
  return mapped(s, function(cs, i) return i == 1 and map_char(cs[1], TITLE) or lower_of(cs, i) end)
end
function M.swapcase(s)
  return mapped(s, function(cs, i)
    local g = category(cs[i])
    return g == 1 and lower_of(cs, i) or g == 2 and map_char(cs[i], UPPER) or cs[i]
  end)
end
--- As str.title: a cased letter that follows none is raised, the others lowered.
function M.title(s)
  local before = false
  return mapped(s, function(cs, i)
    local was = before
    before = is_cased(cs[i])
    return was and lower_of(cs, i) or map_char(cs[i], TITLE)
  end)
end

--- Does every character (there is one at least) have one of these categories?
function M.all(s, test)
  local cs, n = M.chars(s)
  for i = 1, n do
    if not test(category(cs[i]), cs[i]) then return false end
  end
  return n > 0
end

--- May Python's repr show this character?
function M.printable(c)
  local g = category(c)
  return c == " " or not (g == 0 or g >= 23)
end

return M
