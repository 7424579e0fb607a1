-- What Python does with values: truth, equality, order, length, iteration, str and repr.
local base, text = require "pl.jinja.base", require "pl.jinja.text"
local fail, kind, none = base.fail, base.kind, base.none
local charge, step = base.charge, base.step
local M = {}

-- Numbers --------------------------------------------------------------------------------------------------------

--- A float as Python's repr writes it: the fewest digits that give it back.
function M.float_repr(v)
  if v ~= v then return "nan" end
  if v == math.huge then return "inf" elseif v == -math.huge then return "-inf" end
  if v == 0 then return 1 / v < 0 and "-0.0" or "0.0" end
  local s
  for p = 14, 16 do
    s = ("%." .. p .. "e"):format(v)
    if tonumber(s) == v then break end
  end
  local sign, a, b, e = s:match "^(%-?)(%d)%.(%d*)e([+-]%d+)$"
  local digits, exp = (a .. b):gsub("0+$", ""), tonumber(e)
  if digits == "" then digits = "0" end
  local n = #digits
  if exp >= 16 or exp < -4 then
    local m = digits:sub(1, 1) .. (n > 1 and "." .. digits:sub(2) or "")
    return ("%s%se%s%02d"):format(sign, m, exp < 0 and "-" or "+", math.abs(exp))
  elseif exp < 0 then
    return sign .. "0." .. ("0"):rep(-exp - 1) .. digits
  elseif n <= exp + 1 then
    return sign .. digits .. ("0"):rep(exp + 1 - n) .. ".0"
  end
  return sign .. digits:sub(1, exp + 1) .. "." .. digits:sub(exp + 2)
end

--- "%.3f" with a tie going to the even digit, as in Python; LuaJIT's own goes away from zero.
function M.fixed(v, digits)
  local plain = ("%." .. digits .. "f"):format(v)
  local long = ("%." .. math.min(digits + 30, 99) .. "f"):format(v)
  local stop = long:find(".", 1, true) + digits
  if not long:find("^50*$", stop + 1) then return plain end
  local head = long:sub(1, digits == 0 and stop - 1 or stop)
  if head:byte(-1) % 2 == 0 then return head end
  return ("%." .. digits .. "f"):format(tonumber(head) + (v < 0 and -1 or 1) * 10 ^ -digits)
end

function M.int_repr(v) return ("%.0f"):format(v) end

-- repr and str ---------------------------------------------------------------------------------------------------

local short = { ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t", ["\\"] = "\\\\" }
local function str_repr(s)
  local q = s:find("'", 1, true) and not s:find('"', 1, true) and '"' or "'"
  charge(#s)
  s = s:gsub("[%z\1-\31\\\127]", function(c) return short[c] or ("\\x%02x"):format(c:byte()) end)
  if q == "'" then s = s:gsub("'", "\\'") end
  if not text.ascii(s) then
    s = s:gsub("[\192-\255][\128-\191]+", function(c)
      if text.printable(c) then return nil end
      local u = text.code(c)
      return (u < 256 and "\\x%02x" or u < 65536 and "\\u%04x" or "\\U%08x"):format(u)
    end)
  end
  charge(#s)
  return q .. s .. q
end

local repr
local function join_reprs(v, open, close, n, at)
  local parts = {}
  base.enter()
  step(n)
  for i = 1, n do parts[i] = at(v, i) end
  base.leave()
  local s = open .. table.concat(parts, ", ") .. close
  charge(#s)
  return s
end
local function item(v, i) return repr(v[i]) end
local function pair(d, i) return repr(d.keys[i]) .. ": " .. repr(d.at[base.hash(d.keys[i])]) end

local reprs = {
  str = str_repr,
  int = M.int_repr,
  bool = function(v) return v and "True" or "False" end,
  none = function() return "None" end,
  float = function(v) return M.float_repr(v.v) end,
  big = function(v) return v.s end,
  markup = function(v) return "Markup(" .. str_repr(v.s) .. ")" end,
  undefined = function() return "Undefined" end,
  list = function(v) return join_reprs(v, "[", "]", v.n, item) end,
  tuple = function(v) return join_reprs(v, "(", v.n == 1 and ",)" or ")", v.n, item) end,
  dict = function(v) return join_reprs(v, "{", "}", v.n, pair) end,
  range = function(v)
    return v.by == 1 and ("range(%d, %d)"):format(v.from, v.to) or ("range(%d, %d, %d)"):format(v.from, v.to, v.by)
  end,
  view = function(v) return "dict_" .. v.what .. "(" .. repr(M.to_list(v)) .. ")" end,
  ns = function(v) return "<Namespace " .. repr(v.dict) .. ">" end,
  macro = function(v) return "<Macro " .. str_repr(v.name) .. ">" end,
  loop = function(v) return ("<LoopContext %d/%d>"):format(v.i, v:length()) end,
  slice = function(v) return ("slice(%s, %s, %s)"):format(repr(v.from), repr(v.to), repr(v.by)) end,
}
function repr(v)
  local k = kind(v)
  local f = reprs[k]
  if f then return f(v) end
  -- what Python would print holds an address
  return ("<%s object>"):format(base.type_name(v))
end
M.repr = repr

--- What `{{ v }}` prints.
function M.str(v)
  local t = type(v)
  if t == "string" then return v end
  if t == "number" then return ("%.0f"):format(v) end
  if t == "boolean" then return v and "True" or "False" end
  local k = v.kind
  if k == "markup" then return v.s end
  if k == "undefined" then return "" end
  return repr(v)
end

-- Truth, equality, order -----------------------------------------------------------------------------------------

function M.truth(v)
  local t = type(v)
  if t == "boolean" then return v end
  if t == "string" then return v ~= "" end
  if t == "number" then return v ~= 0 end
  local k = v.kind
  if k == "none" or k == "undefined" then return false end
  if k == "list" or k == "dict" or k == "tuple" or k == "range" then return v.n > 0 end
  if k == "float" then return v.v ~= 0 end
  if k == "markup" then return v.s ~= "" end
  if k == "view" then return v.dict.n > 0 end
  return true
end

local numeric = { int = true, bool = true, float = true, big = true }
local textual = { str = true, markup = true }

local function eq(a, b)
  if a == b then
    return not (type(a) == "table" and a.kind == "float" and a.v ~= a.v)
  end
  local ta, tb = type(a), type(b)
  if ta == "string" and tb == "string" or ta == "number" and tb == "number" then return false end
  local ka, kb = kind(a), kind(b)
  if numeric[ka] and numeric[kb] then
    if ka == "big" and kb == "big" then return a.s == b.s end
    return base.number(a) == base.number(b) and (ka ~= "big" and kb ~= "big" or ka == "float" or kb == "float")
  end
  if textual[ka] and textual[kb] then return base.text(a) == base.text(b) end
  if ka ~= kb then return false end
  if ka == "undefined" then return true end
  if ka == "list" or ka == "tuple" then
    if a.n ~= b.n then return false end
    base.enter()
    step(a.n)
    for i = 1, a.n do
      if not eq(a[i], b[i]) then
        base.leave()
        return false
      end
    end
    base.leave()
    return true
  elseif ka == "dict" then
    if a.n ~= b.n then return false end
    base.enter()
    step(a.n)
    for h, v in pairs(a.at) do
      local w = b.at[h]
      if w == nil or not eq(v, w) then
        base.leave()
        return false
      end
    end
    base.leave()
    return true
  elseif ka == "range" then
    return a.n == b.n and (a.n == 0 or a.from == b.from and (a.n == 1 or a.by == b.by))
  elseif ka == "view" and a.what == b.what and a.what ~= "values" then
    if a.dict.n ~= b.dict.n then return false end
    if a.what == "items" then return eq(a.dict, b.dict) end
    for h in pairs(a.dict.at) do if b.dict.at[h] == nil then return false end end
    return true
  elseif ka == "method" then
    return a.self == b.self and a.name == b.name
  end
  return false
end
M.eq = eq

local signs = { lt = "<", le = "<=", gt = ">", ge = ">=" }
-- -1, 0, 1, or nil where a number is nan
local function order(a, b, op)
  local ka, kb = kind(a), kind(b)
  if numeric[ka] and numeric[kb] then
    if ka == "big" and kb == "big" then
      local na, nb = a.s:sub(1, 1) == "-", b.s:sub(1, 1) == "-"
      if na ~= nb then return na and -1 or 1 end
      local r = #a.s ~= #b.s and (#a.s < #b.s and -1 or 1) or a.s < b.s and -1 or a.s > b.s and 1 or 0
      return na and -r or r
    end
    local x, y = base.number(a), base.number(b)
    return x < y and -1 or x > y and 1 or x == y and 0 or nil
  elseif textual[ka] and textual[kb] then
    local x, y = base.text(a), base.text(b)
    if x == y then return 0 end
    -- bytes, not what a locale says; UTF-8 sorts as its characters do
    local n = math.min(#x, #y)
    step(math.floor(n / 64))
    local i = 1
    while i <= n and x:byte(i) == y:byte(i) do i = i + 1 end
    if i > n then return #x < #y and -1 or 1 end
    return x:byte(i) < y:byte(i) and -1 or 1
  elseif (ka == "list" or ka == "tuple") and ka == kb then
    base.enter()
    step(a.n)
    for i = 1, math.min(a.n, b.n) do
      if not eq(a[i], b[i]) then
        local r = order(a[i], b[i], op)
        base.leave()
        return r
      end
    end
    base.leave()
    return a.n < b.n and -1 or a.n > b.n and 1 or 0
  end
  if ka == "undefined" then base.use_undefined(a) elseif kb == "undefined" then base.use_undefined(b) end
  fail("python", "'%s' not supported between instances of '%s' and '%s'", signs[op], base.type_name(a),
    base.type_name(b))
end
function M.lt(a, b) return order(a, b, "lt") == -1 end
function M.le(a, b)
  local r = order(a, b, "le")
  return r == -1 or r == 0
end
function M.gt(a, b) return order(a, b, "gt") == 1 end
function M.ge(a, b)
  local r = order(a, b, "ge")
  return r == 1 or r == 0
end

-- Length and iteration -------------------------------------------------------------------------------------------

function M.len(v)
  local s = base.text(v)
  if s then return text.len(s) end
  local k = kind(v)
  if k == "list" or k == "tuple" or k == "dict" or k == "range" then return v.n end
  if k == "view" then return v.dict.n end
  if k == "undefined" then return 0 end
  if k == "loop" then return v:length() end
  fail("python", "object of type '%s' has no len()", base.type_name(v))
end

local function over_list(v)
  local i = 0
  return function()
    i = i + 1
    if i <= v.n then return v[i] end
  end
end

--- A function that gives the next element of v, or nil at the end. Every element costs a step.
function M.iter(v)
  local k = kind(v)
  if k == "list" or k == "tuple" then return over_list(v) end
  if k == "gen" then return v.next end
  if k == "dict" then
    local i, n = 0, v.n
    return function()
      if v.n ~= n then fail("python", "dictionary changed size during iteration") end
      i = i + 1
      return v.keys[i]
    end
  elseif k == "view" then
    local d, i = v.dict, 0
    return function()
      i = i + 1
      local key = d.keys[i]
      if key == nil then return nil end
      if v.what == "keys" then return key end
      local value = d.at[base.hash(key)]
      return v.what == "values" and value or v.what ~= "values" and base.tuple(key, value) or value
    end
  elseif k == "range" then
    local i = -1
    return function()
      i = i + 1
      if i < v.n then return v.from + i * v.by end
    end
  elseif k == "str" or k == "markup" then
    local cs = text.chars(base.text(v))
    local i = 0
    return function()
      i = i + 1
      return cs[i]
    end
  elseif k == "undefined" then
    return function() end
  end
  fail("python", "'%s' object is not iterable", base.type_name(v))
end

function M.is_iterable(v)
  local k = kind(v)
  return k == "list" or k == "tuple" or k == "gen" or k == "dict" or k == "view" or k == "range" or k == "str"
    or k == "markup" or k == "undefined"
end

--- A new list of v's elements.
function M.to_list(v, as)
  local out, n = {}, 0
  for x in M.iter(v) do
    n = n + 1
    if n % 64 == 0 then
      step(64)
      charge(1024)
    end
    out[n] = x
  end
  step(n % 64)
  return base.list(out, n, as)
end

--- A generator over what next() gives.
function M.gen(next) return { kind = "gen", next = next } end

--- x in v
function M.contains(v, x)
  local s = base.text(v)
  if s then
    local t = base.text(x)
    if not t then fail("python", "'in <string>' requires string as left operand, not %s", base.type_name(x)) end
    step(math.floor(#s / 256))
    return s:find(t, 1, true) ~= nil
  end
  local k = kind(v)
  if k == "dict" then return v.at[base.hash(x)] ~= nil end
  if k == "view" and v.what == "keys" then return v.dict.at[base.hash(x)] ~= nil end
  if not M.is_iterable(v) then
    fail("python", "argument of type '%s' is not iterable", base.type_name(v))
  end
  for y in M.iter(v) do
    step()
    if y == x or eq(y, x) then return true end
  end
  return false
end

--- A slice's bounds within n elements: first index (from 0), count, step, end.
function M.bounds(sl, n)
  local function whole(v, what)
    if v == none or v == nil then return nil end
    local i = base.int(v)
    if not i then
      if kind(v) == "big" then return v.s:sub(1, 1) == "-" and -2 ^ 53 or 2 ^ 53 end
      return false, what
    end
    return i
  end
  local by = whole(sl.by)
  local from, to = whole(sl.from), whole(sl.to)
  if by == false or from == false or to == false then return nil end
  by = by or 1
  if by == 0 then return nil, "zero" end
  if by > 0 then
    from = from and (from < 0 and math.max(from + n, 0) or math.min(from, n)) or 0
    to = to and (to < 0 and math.max(to + n, 0) or math.min(to, n)) or n
    return from, math.max(0, math.ceil((to - from) / by)), by, to
  end
  from = from and (from < 0 and math.max(from + n, -1) or math.min(from, n - 1)) or n - 1
  to = to and (to < 0 and math.max(to + n, -1) or math.min(to, n - 1)) or -1
  return from, math.max(0, math.ceil((to - from) / by)), by, to
end

return M
