-- Operators: + - * / // % ** ~ and the signs, as Python's ints, floats, texts and lists have them.
local base, object = require "pl.jinja.base", require "pl.jinja.object"
local fail, kind, whole, float, number = base.fail, base.kind, base.whole, base.float, base.number
local M = {}
local MAX = 2 ^ 24

local integral = { int = true, bool = true }
local numeric = { int = true, bool = true, float = true, big = true }
local sequence = { list = true, tuple = true }

local signs = { add = "+", sub = "-", mul = "*", div = "/", floordiv = "//", mod = "%", pow = "** or pow()" }
local function unsupported(op, a, b)
  if kind(a) == "undefined" then base.use_undefined(a) elseif kind(b) == "undefined" then base.use_undefined(b) end
  fail("python", "unsupported operand type(s) for %s: '%s' and '%s'", signs[op], base.type_name(a), base.type_name(b))
end

-- Both as Lua numbers, and whether both are ints; nil if one is no number.
local function numbers(op, a, b)
  local ka, kb = kind(a), kind(b)
  if not (numeric[ka] and numeric[kb]) then unsupported(op, a, b) end
  if integral[ka] and integral[kb] then return number(a), number(b), true end
  if (ka == "big" or kb == "big") and ka ~= "float" and kb ~= "float" then fail("limit", "an integer beyond 2^53") end
  return number(a), number(b), false
end

function M.add(a, b)
  if type(a) == "number" and type(b) == "number" then return whole(a + b) end
  if type(a) == "string" and type(b) == "string" then
    local n = #a + #b
    if n > MAX then fail("limit", "a text of more than %d bytes", MAX) end
    base.charge(n)
    return a .. b
  end
  local ka, kb = kind(a), kind(b)
  local s, t = base.text(a), base.text(b)
  if s and t then
    if ka == "markup" or kb == "markup" then
      if ka ~= "markup" then s = object.escape(s) elseif kb ~= "markup" then t = object.escape(t) end
      return object.markup(M.add(s, t))
    end
  elseif s then
    if kb == "undefined" then base.use_undefined(b) end
    fail("python", 'can only concatenate str (not "%s") to str', base.type_name(b))
  elseif sequence[ka] then
    if kb == "undefined" then base.use_undefined(b) end
    if ka ~= kb then fail("python", 'can only concatenate %s (not "%s") to %s', ka, base.type_name(b), ka) end
    local out = {}
    base.step(a.n + b.n)
    for i = 1, a.n do out[i] = a[i] end
    for i = 1, b.n do out[a.n + i] = b[i] end
    return base.list(out, a.n + b.n, ka)
  end
  local x, y, int = numbers("add", a, b)
  return int and whole(x + y) or float(x + y)
end

function M.sub(a, b)
  local x, y, int = numbers("sub", a, b)
  return int and whole(x - y) or float(x - y)
end

local function times(v, n)
  local s = base.text(v)
  if s then
    if n <= 0 or s == "" then return "" end
    if #s * n > MAX then fail("limit", "a text of more than %d bytes", MAX) end
    base.charge(#s * n)
    return s:rep(n)
  end
  n = math.max(n, 0)
  if v.n * n > 2 ^ 20 then fail("limit", "a list of more than %d elements", 2 ^ 20) end
  local out = {}
  base.step(v.n * n)
  for k = 0, v.n > 0 and n - 1 or -1 do for i = 1, v.n do out[k * v.n + i] = v[i] end end
  return base.list(out, v.n * n, v.kind)
end

function M.mul(a, b)
  local ka, kb = kind(a), kind(b)
  if (base.text(a) or sequence[ka]) and integral[kb] then
    local r = times(a, number(b))
    return ka == "markup" and object.markup(r) or r
  elseif (base.text(b) or sequence[kb]) and integral[ka] then
    local r = times(b, number(a))
    return kb == "markup" and object.markup(r) or r
  end
  if base.text(a) or sequence[ka] then
    if kb == "undefined" then base.use_undefined(b) end
    fail("python", "can't multiply sequence by non-int of type '%s'", base.type_name(b))
  end
  local x, y, int = numbers("mul", a, b)
  return int and whole(x * y) or float(x * y)
end

function M.div(a, b)
  local x, y = numbers("div", a, b)
  if y == 0 then fail("python", "division by zero") end
  return float(x / y)
end

-- The remainder with the divisor's sign, exact for all doubles.
local function remainder(x, y)
  local r = math.fmod(x, y)
  if r == 0 then return y < 0 and -0.0 or 0 end
  if (r < 0) ~= (y < 0) then r = r + y end
  return r
end

function M.floordiv(a, b)
  local x, y, int = numbers("floordiv", a, b)
  if y == 0 then fail("python", "integer division or modulo by zero") end
  if int then return whole((x - remainder(x, y)) / y) end
  local q = math.floor((x - remainder(x, y)) / y + 0.5)
  return float(q == 0 and 0 * (x / y) or q)
end

function M.mod(a, b)
  if base.text(a) then
    local r = require("pl.jinja.format").percent(base.text(a), b)
    return kind(a) == "markup" and object.markup(r) or r
  end
  local x, y, int = numbers("mod", a, b)
  if y == 0 then fail("python", "integer division or modulo by zero") end
  local r = remainder(x, y)
  return int and whole(r) or float(r)
end

function M.pow(a, b)
  local x, y, int = numbers("pow", a, b)
  if x == 0 and y < 0 then fail("python", "0.0 cannot be raised to a negative power") end
  if int and y >= 0 then
    local r = x ^ y
    if r ~= r or math.abs(r) > 2 ^ 53 then fail("limit", "an integer beyond 2^53") end
    return r
  end
  local r = x ^ y
  if r ~= r then fail("limit", "a power that is no real number") end
  if math.abs(r) == math.huge and math.abs(x) ~= math.huge and math.abs(y) ~= math.huge then
    fail("python", "(34, 'Numerical result out of range')")
  end
  return float(r)
end

function M.neg(a)
  local k = kind(a)
  if integral[k] then return 0 - number(a) end
  if k == "float" then return float(-a.v) end
  if k == "big" then return base.big(a.s:sub(1, 1) == "-" and a.s:sub(2) or "-" .. a.s) end
  if k == "undefined" then base.use_undefined(a) end
  fail("python", "bad operand type for unary -: '%s'", base.type_name(a))
end

function M.pos(a)
  local k = kind(a)
  if integral[k] then return number(a) end
  if k == "float" or k == "big" then return a end
  if k == "undefined" then base.use_undefined(a) end
  fail("python", "bad operand type for unary +: '%s'", base.type_name(a))
end

return M
