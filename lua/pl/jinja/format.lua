-- Python's format specifications: "{:>8.2f}".format(x), "%5d" % x, and strftime.
local base, text, value, object = require "pl.jinja.base", require "pl.jinja.text", require "pl.jinja.value",
  require "pl.jinja.object"
local fail, kind = base.fail, base.kind
local M = {}
local MOST = 2 ^ 16 -- width and precision

local function bounded(s, what)
  local n = tonumber(s)
  if n and n > MOST then fail("limit", "format: %s of more than %d", what, MOST) end
  return n
end

local function fill_to(s, width, fill, align)
  local room = (width or 0) - text.len(s)
  if room <= 0 then return s end
  base.charge(room * #fill)
  if align == "<" then return s .. fill:rep(room) end
  if align == "^" then
    local left = math.floor(room / 2)
    return fill:rep(left) .. s .. fill:rep(room - left)
  end
  return fill:rep(room) .. s
end

local function grouped(digits, sep, size)
  local out, first = {}, #digits % size
  if first > 0 then out[1] = digits:sub(1, first) end
  for i = first + 1, #digits, size do out[#out + 1] = digits:sub(i, i + size - 1) end
  return table.concat(out, sep)
end

local function in_base(n, b)
  if n == 0 then return "0" end
  local out = {}
  while n > 0 do
    local d = n % b
    table.insert(out, 1, ("0123456789abcdef"):sub(d + 1, d + 1))
    n = (n - d) / b
  end
  return table.concat(out)
end

-- The digits of |v| as a type letter says.
local function float_digits(v, letter, precision, alternate)
  if v ~= v then return "nan" elseif v == math.huge then return "inf" end
  local lower = letter:lower()
  if letter == "" then
    if not precision then return value.float_repr(v) end
    local s = ("%." .. math.max(1, precision) .. "g"):format(v)
    if not s:find "[%.e]" then s = s .. ".0" end
    return s
  end
  precision = math.min(precision or 6, 99) -- what Lua's format takes
  if lower == "n" then lower = "g" end
  if lower == "%" then return value.fixed(v * 100, math.min(precision, 60)) .. "%" end
  if lower == "f" and not alternate then return value.fixed(v, math.min(precision, 60)) end
  return ("%" .. (alternate and "#" or "") .. "." .. precision .. lower):format(v)
end

local function format_number(v, k, spec, f)
  local n, body = base.number(v), nil
  local letter = f.letter
  if (k == "float" and letter:find "[bcdoxXn]" or letter == "s") then
    fail("python", "Unknown format code '%s' for object of type '%s'", letter, base.type_name(v))
  end
  local negative = n < 0 or n == 0 and k == "float" and 1 / n < 0
  local prefix = ""
  if letter:find "[eEfFgG%%]" or k == "float" then
    body = float_digits(math.abs(n), letter, f.precision, f.alternate)
  else
    if f.precision then fail("python", "Precision not allowed in integer format specifier") end
    if letter == "c" then return fill_to(text.char(n), f.width, f.fill or " ", f.align or "<") end
    local bases = { b = 2, o = 8, x = 16, X = 16 }
    if bases[letter] then
      if k == "big" then fail("limit", "an integer beyond 2^53") end
      body = in_base(math.abs(n), bases[letter])
      if f.alternate then prefix = "0" .. letter end
    elseif letter == "" or letter == "d" or letter == "n" then
      body = k == "big" and v.s:gsub("^-", "") or value.int_repr(math.abs(n))
    else
      fail("python", "Unknown format code '%s' for object of type '%s'", letter, base.type_name(v))
    end
  end
  if letter:find "[EFGX]" then body = body:upper() end
  if f.group then
    local whole, rest = body:match "^(%d+)(.*)$"
    if whole then body = grouped(whole, f.group, letter:find "[boxX]" and 4 or 3) .. rest end
  end
  local sign = negative and "-" or f.sign == "+" and "+" or f.sign == " " and " " or ""
  if (f.align or f.zero and "=") == "=" then
    return sign .. prefix .. fill_to(body, (f.width or 0) - #sign - #prefix, f.fill or f.zero and "0" or " ", ">")
  end
  return fill_to(sign .. prefix .. body, f.width, f.fill or f.zero and "0" or " ", f.align or ">")
end

--- format(v, spec)
function M.spec(v, spec)
  local k = kind(v)
  local f, rest = {}, spec
  local c = rest:match "^[%z\1-\127\192-\255][\128-\191]*"
  local a = c and rest:sub(#c + 1, #c + 1)
  if a and a ~= "" and ("<>=^"):find(a, 1, true) then
    f.fill, f.align, rest = c, a, rest:sub(#c + 2)
  elseif c and ("<>=^"):find(c, 1, true) then
    f.align, rest = c, rest:sub(2)
  end
  local sign, alternate, zero, width, group, dot, precision, letter =
    rest:match "^([+ -]?)(#?)(0?)(%d*)([,_]?)(%.?)(%d*)(%a?%%?)$"
  if not sign or dot == "" and precision ~= "" or dot ~= "" and precision == "" or #letter > 1 then
    fail("python", "Invalid format specifier '%s' for object of type '%s'", spec, base.type_name(v))
  end
  f.sign, f.alternate, f.zero = sign, alternate ~= "", zero ~= ""
  f.width, f.precision = bounded(width, "width"), bounded(precision, "precision")
  f.group, f.letter = group ~= "" and group or nil, letter
  if k == "bool" and letter == "" and spec ~= "" then v, k = v and 1 or 0, "int" end
  if k == "bool" and letter ~= "" then k = "int" end
  if spec == "" then return value.str(v) end
  if k == "int" or k == "float" or k == "big" then return format_number(v, k, spec, f) end
  if k == "str" or k == "markup" then
    local s = base.text(v)
    if f.align == "=" or letter ~= "" and letter ~= "s" or sign ~= "" or f.alternate or f.group then
      fail("python", "Unknown format code '%s' for object of type 'str'", letter)
    end
    if f.precision then s = text.sub(s, 0, math.min(f.precision, text.len(s))) end
    return fill_to(s, f.width, f.fill or f.zero and "0" or " ", f.align or "<")
  end
  fail("python", "unsupported format string passed to %s.__format__", base.type_name(v))
end

-- "{0.a[b]!r:>8}": the value that a field's name means.
local function field(name, a, named, auto)
  local first, rest = name:match "^([^%.%[]*)(.*)$"
  local v
  if first == "" or first:find "^%d+$" then
    local i
    if first == "" then
      if auto.manual then
        fail("python", "cannot switch from manual field specification to automatic field numbering")
      end
      i, auto.next = auto.next, auto.next + 1
    else
      if auto.next > 0 then
        fail("python", "cannot switch from automatic field numbering to manual field specification")
      end
      i, auto.manual = tonumber(first), true
    end
    v = a[i + 1]
    if v == nil then fail("python", "Replacement index %s out of range for positional args tuple", tostring(i)) end
  else
    v = named[first]
    if v == nil then fail("python", "KeyError: '%s'", first) end
  end
  while rest ~= "" do
    local attr, more = rest:match "^%.([^%.%[]+)(.*)$"
    if attr then
      v, rest = object.getattr(v, attr), more
    else
      local key
      key, more = rest:match "^%[([^%]]+)%](.*)$"
      if not key then fail("python", "Empty attribute in format string") end
      v, rest = object.getitem(v, key:find "^%d+$" and tonumber(key) or key), more
    end
  end
  return v
end

local function format(s, a, named, auto, deep)
  if deep > 2 then fail("python", "Max string recursion exceeded") end
  local out, at = {}, 1
  local function add(x)
    base.charge(#x + 16)
    out[#out + 1] = x
  end
  while at <= #s do
    local i = s:find("[{}]", at)
    if not i then break end
    base.step()
    add(s:sub(at, i - 1))
    local c = s:sub(i, i)
    if s:sub(i + 1, i + 1) == c then
      add(c)
      at = i + 2
    elseif c == "}" then
      fail("python", "Single '}' encountered in format string")
    else
      local depth, j = 1, i
      while depth > 0 do
        j = s:find("[{}]", j + 1)
        if not j then fail("python", "expected '}' before end of string") end
        depth = depth + (s:sub(j, j) == "{" and 1 or -1)
      end
      local inside = s:sub(i + 1, j - 1)
      local name, conversion, spec = inside:match "^([^!:]*)(!?[^:]*):?(.*)$"
      if inside:find(":", 1, true) == nil then spec = "" end
      local v = field(name, a, named, auto)
      if conversion == "!r" or conversion == "!a" then v = value.repr(v)
      elseif conversion == "!s" then v = value.str(v)
      elseif conversion ~= "" then fail("python", "Unknown conversion specifier %s", conversion) end
      if spec:find("[{}]") then spec = format(spec, a, named, auto, deep + 1) end
      add(M.spec(v, spec))
      at = j + 1
    end
  end
  add(s:sub(at))
  return table.concat(out)
end

--- str.format
function M.format(s, a, named) return format(s, a, named, { next = 0 }, 1) end

--- s % v
function M.percent(s, v)
  local k = kind(v)
  local list = k == "tuple" and v or nil
  local used, out, at = 0, {}, 1
  local function add(x)
    base.charge(#x + 16)
    out[#out + 1] = x
  end
  local function next_value()
    used = used + 1
    if list then
      if used > list.n then fail("python", "not enough arguments for format string") end
      return list[used]
    end
    if used > 1 then fail("python", "not enough arguments for format string") end
    return v
  end
  local mapped = false
  while true do
    local i = s:find("%", at, true)
    if not i then break end
    base.step()
    add(s:sub(at, i - 1))
    local key, rest = s:match("^%((.-)%)()", i + 1)
    local flags, width, precision, letter, stop = s:match("^([#0 +-]*)(%d*%*?)%.?(%d*%*?)[hlL]?(.)()", rest or i + 1)
    if not flags then fail("python", "incomplete format") end
    local has_dot = s:sub(rest or i + 1, stop - 1):find(".", 1, true) ~= nil
    if letter == "%" and not key then
      add "%"
    else
      local item
      if width == "*" then width = base.int(next_value()) or fail("python", "* wants int") end
      if precision == "*" then precision = base.int(next_value()) or fail("python", "* wants int") end
      if key then
        if k ~= "dict" then fail("python", "format requires a mapping") end
        mapped, item = true, v.at[key]
        if item == nil then fail("python", "KeyError: '%s'", key) end
      else
        item = next_value()
      end
      local f = { width = bounded(width, "width"), letter = letter,
        precision = has_dot and (bounded(precision, "precision") or 0) or nil,
        sign = flags:find("+", 1, true) and "+" or flags:find(" ", 1, true) and " " or "",
        alternate = flags:find("#", 1, true) ~= nil }
      local left = flags:find("-", 1, true)
      if left then f.align = "<" elseif flags:find("0", 1, true) then f.zero = true end
      local ik = kind(item)
      if letter == "s" or letter == "r" or letter == "a" then
        local x = letter == "s" and value.str(item) or letter ~= "s" and value.repr(item) or ""
        if f.precision then x = text.sub(x, 0, math.min(f.precision, text.len(x))) end
        add(fill_to(x, f.width, " ", left and "<" or ">"))
      elseif letter == "c" then
        local x = base.text(item) or base.int(item) and text.char(base.int(item))
        if not x or text.len(x) ~= 1 then fail("python", "%%c requires int or char") end
        add(fill_to(x, f.width, " ", left and "<" or ">"))
      elseif letter:find "[diuxXoeEfFgG]" then
        local n = base.number(item)
        if not n then
          fail("python", "%%%s format: a real number is required, not %s", letter, base.type_name(item))
        end
        if letter:find "[diu]" then
          f.letter = "d"
          if ik == "float" then
            if n ~= n or n == math.huge or n == -math.huge then fail("python", "cannot convert float to integer") end
            item = require("pl.jinja.json").integer(value.int_repr(n < 0 and math.ceil(n) or math.floor(n)))
          end
        elseif letter:find "[xXo]" and ik == "float" then
          fail("python", "%%%s format: an integer is required, not float", letter)
        end
        if ik == "bool" then item = n end
        if f.letter:find "[dxXo]" then f.precision = nil end
        local ok = kind(item)
        add(format_number(item, ok, "", f))
      else
        fail("python", "unsupported format character '%s'", letter)
      end
    end
    at = stop
  end
  add(s:sub(at))
  if not mapped and (list and used < list.n or not list and used == 0 and k ~= "dict" and k ~= "list"
    and k ~= "undefined" and k ~= "range") then
    fail("python", "not all arguments converted during string formatting")
  end
  return table.concat(out)
end

--- strftime of a time (as os.time gives it), for the conversions of the C library.
function M.strftime(form, now)
  if #form > 1000 then fail("limit", "strftime: a format of more than 1000 bytes") end
  return (form:gsub("%%([-_0^#]?)(.?)", function(flag, c)
    if c == "f" then return "000000" end
    if c == "z" or c == "Z" then return "" end
    if c == "%" or c == "" then return "%" end
    if c:find "[aAbBcdDeFgGhHIjklmMnprRsStTuUVwWxXyYCP]" then
      local s = os.date("%" .. c, now)
      if flag == "-" then s = s:gsub("^[0 ]+(.)", "%1")
      elseif flag == "_" then s = s:gsub("^0+(.)", function(x) return " " .. x end)
      elseif flag == "^" then s = s:upper() end
      return s
    end
    return "%" .. flag .. c
  end))
end

return M
