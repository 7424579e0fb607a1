-- JSON as templates need it: read with its keys in order, whole numbers and fractions told apart; written as Python's
-- json.dumps writes it.
local base, value = require "pl.jinja.base", require "pl.jinja.value"
local text = require "pl.jinja.text"
local fail, kind, none = base.fail, base.kind, base.none
local find, sub, byte = string.find, string.sub, string.byte
local M = {}
local DEEP = 200

-- Reading --------------------------------------------------------------------------------------------------------

local escapes = { ['"'] = '"', ["\\"] = "\\", ["/"] = "/", b = "\b", f = "\f", n = "\n", r = "\r", t = "\t" }

local function bad(s, at, what) error({ json = ("%s at byte %d"):format(what, at) }, 0) end

local function read_string(s, at) -- at: behind the quote
  local stop = at
  while true do
    stop = find(s, '["\\%z\1-\31]', stop)
    if not stop then bad(s, at, "a string without an end") end
    local c = byte(s, stop)
    if c == 34 then break end
    if c ~= 92 then bad(s, stop, "a control character in a string") end
    stop = stop + 2
  end
  local raw = sub(s, at, stop - 1)
  if not find(raw, "\\", 1, true) then return raw, stop + 1 end
  -- pairs of surrogates become one character; the backslash before must not be escaped itself: hence in one pass
  local out, n, i = {}, 0, 1
  while true do
    local j = find(raw, "\\", i, true)
    if not j then break end
    n = n + 1
    out[n] = sub(raw, i, j - 1)
    local c = sub(raw, j + 1, j + 1)
    if c == "u" then
      local hex = raw:match("^%x%x%x%x", j + 2)
      if not hex then bad(s, at + j - 1, "a wrong \\u escape") end
      local u = tonumber(hex, 16)
      i = j + 6
      if u >= 0xD800 and u < 0xDC00 then
        local low = raw:match("^\\u([dD][c-fC-F]%x%x)", i)
        if low then u, i = 0x10000 + (u - 0xD800) * 1024 + tonumber(low, 16) - 0xDC00, i + 6 end
      end
      out[n + 1] = text.char(u)
    else
      out[n + 1] = escapes[c] or bad(s, at + j - 1, "a wrong escape")
      i = j + 2
    end
    n = n + 1
  end
  out[n + 1] = sub(raw, i)
  return table.concat(out), stop + 1
end

local read
local function read_number(s, at)
  local num, stop = s:match("^(%-?%d+)()", at)
  if not num or find(num, "^%-?0%d") then bad(s, at, "no value") end
  local rest, last = s:match("^(%.%d+)()", stop)
  local frac = rest or ""
  local e, after = s:match("^([eE][+-]?%d+)()", last or stop)
  if rest or e then return base.float(tonumber(num .. frac .. (e or ""))), after or last or stop end
  return M.integer(num), stop
end

--- An int from its digits.
function M.integer(digits)
  local v = tonumber(digits)
  if v > 2 ^ 53 or v < -2 ^ 53 then return base.big((digits:gsub("^(%-?)0+(%d)", "%1%2"))) end
  return v + 0
end

local function skip(s, at) return find(s, "[^ \t\n\r]", at) or #s + 1 end

function read(s, at, depth)
  if depth > DEEP then bad(s, at, ("more than %d deep"):format(DEEP)) end
  at = skip(s, at)
  local c = byte(s, at)
  if c == 34 then return read_string(s, at + 1) end
  if c == 123 then
    local d = base.dict()
    at = skip(s, at + 1)
    if byte(s, at) == 125 then return d, at + 1 end
    while true do
      at = skip(s, at)
      if byte(s, at) ~= 34 then bad(s, at, "no name in an object") end
      local k, v
      k, at = read_string(s, at + 1)
      at = skip(s, at)
      if byte(s, at) ~= 58 then bad(s, at, "no ':'") end
      v, at = read(s, at + 1, depth + 1)
      base.put(d, k, v)
      at = skip(s, at)
      c = byte(s, at)
      at = at + 1
      if c == 125 then return d, at end
      if c ~= 44 then bad(s, at - 1, "no ',' in an object") end
    end
  elseif c == 91 then
    local l, n = {}, 0
    at = skip(s, at + 1)
    if byte(s, at) == 93 then return base.list(l, 0), at + 1 end
    while true do
      n = n + 1
      l[n], at = read(s, at, depth + 1)
      at = skip(s, at)
      c = byte(s, at)
      at = at + 1
      if c == 93 then return base.list(l, n), at end
      if c ~= 44 then bad(s, at - 1, "no ',' in a list") end
    end
  end
  local word = s:match("^%a+", at)
  if word == "true" then return true, at + 4 end
  if word == "false" then return false, at + 5 end
  if word == "null" then return none, at + 4 end
  return read_number(s, at)
end

-- What the caller gives is not the template's to change.
local function freeze(v)
  if type(v) ~= "table" then return v end
  if v.kind == "list" then
    v.own = false
    for i = 1, v.n do freeze(v[i]) end
  elseif v.kind == "dict" then
    v.own = false
    for _, x in pairs(v.at) do freeze(x) end
  end
  return v
end

--- A text's value; nil and what is wrong.
function M.read(s)
  local ok, v, at = pcall(read, s, 1, 0)
  if not ok then
    if type(v) == "table" and v.json then return nil, v.json end
    error(v, 0)
  end
  at = skip(s, at)
  if at <= #s then return nil, ("more behind the value at byte %d"):format(at) end
  return freeze(v)
end

--- A value from Lua's: tables with [1] (or marked by json.list) are lists, others dicts with sorted keys.
function M.from_lua(v, null, is_list, depth)
  depth = depth or 0
  if depth > DEEP then error({ json = ("more than %d deep"):format(DEEP) }, 0) end
  local t = type(v)
  if t == "number" then
    if v % 1 == 0 and v >= -2 ^ 53 and v <= 2 ^ 53 then return v end
    return base.float(v)
  end
  if t == "nil" or v == null or t == "userdata" then return none end
  if t ~= "table" then
    if t == "string" or t == "boolean" then return v end
    error({ json = "a " .. t }, 0)
  end
  if base.is_value(v) then return v end
  if #v > 0 or is_list(v) then
    local l = {}
    for i = 1, #v do l[i] = M.from_lua(v[i], null, is_list, depth + 1) end
    l = base.list(l, #v)
    l.own = false
    return l
  end
  local d, keys = base.dict(), {}
  for k in pairs(v) do
    if type(k) ~= "string" then error({ json = "a key that is no text" }, 0) end
    keys[#keys + 1] = k
  end
  table.sort(keys)
  for _, k in ipairs(keys) do base.put(d, k, M.from_lua(v[k], null, is_list, depth + 1)) end
  d.own = false
  return d
end

-- Writing --------------------------------------------------------------------------------------------------------

local short = { ['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t", ["\b"] = "\\b",
  ["\f"] = "\\f" }
local function quote(s, ascii)
  s = s:gsub('[%z\1-\31"\\]', function(c) return short[c] or ("\\u%04x"):format(byte(c)) end)
  if ascii and find(s, "[\127-\255]") then
    s = s:gsub("\127", "\\u007f")
    s = s:gsub("[\192-\255][\128-\191]*", function(c)
      local u = text.code(c)
      if u < 0x10000 then return ("\\u%04x"):format(u) end
      u = u - 0x10000
      return ("\\u%04x\\u%04x"):format(0xD800 + math.floor(u / 1024), 0xDC00 + u % 1024)
    end)
  end
  return '"' .. s .. '"'
end

local function write(v, o, depth)
  local k = kind(v)
  local out
  if k == "str" or k == "markup" then out = quote(base.text(v), o.ascii)
  elseif k == "int" then out = value.int_repr(v)
  elseif k == "bool" then out = v and "true" or "false"
  elseif k == "none" then out = "null"
  elseif k == "big" then out = v.s
  elseif k == "float" then
    local f = v.v
    out = f ~= f and "NaN" or f == math.huge and "Infinity" or f == -math.huge and "-Infinity" or value.float_repr(f)
  end
  if out then
    base.charge(#out + 8)
    o[#o + 1] = out
    return
  end
  if k ~= "list" and k ~= "tuple" and k ~= "dict" then
    fail("python", "Object of type %s is not JSON serializable", base.type_name(v))
  end
  local open, close = "[", "]"
  if k == "dict" then open, close = "{", "}" end
  if v.n == 0 then
    o[#o + 1] = open .. close
    return
  end
  base.enter()
  base.step(v.n)
  local line = o.indent and "\n" .. o.indent:rep(depth + 1) or ""
  base.charge((#line + 8) * v.n)
  o[#o + 1] = open .. line
  local keys = v.keys
  if k == "dict" and o.sort then keys = require("pl.jinja.object").sorted(v) end
  for i = 1, v.n do
    if i > 1 then o[#o + 1] = o.item .. line end
    if k == "dict" then
      local key = keys[i]
      local kk = kind(key)
      local name = base.text(key) or kk == "bool" and (key and "true" or "false") or kk == "none" and "null"
        or (kk == "int" or kk == "float" or kk == "big") and value.repr(key)
      if not name then
        fail("python", "keys must be str, int, float, bool or None, not %s", base.type_name(key))
      end
      o[#o + 1] = quote(name, o.ascii) .. o.key
      write(v.at[base.hash(key)], o, depth + 1)
    else
      write(v[i], o, depth + 1)
    end
  end
  if o.indent then o[#o + 1] = "\n" .. o.indent:rep(depth) end
  o[#o + 1] = close
  base.leave()
end

--- o: ascii, indent (a text or nil), item, key (separators), sort.
function M.dump(v, o)
  local out = { ascii = o.ascii, indent = o.indent, sort = o.sort, item = o.item or (o.indent and "," or ", "),
    key = o.key or ": " }
  write(v, out, 0)
  local s = table.concat(out)
  base.charge(#s)
  return s
end

return M
