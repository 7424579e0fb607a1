-- Tests: `x is NAME`. Each takes the value and its arguments { n, ... }.
local base, text, value = require "pl.jinja.base", require "pl.jinja.text", require "pl.jinja.value"
local arith = require "pl.jinja.arith"
local fail, kind, none = base.fail, base.kind, base.none
local M = {}

local wants = {} -- how many arguments a test takes; none by default
local function test(name, f, n)
  M[name], wants[name] = f, n or 0
end

local callable = { func = true, method = true, macro = true, loop = true, joiner = true }
test("defined", function(v) return kind(v) ~= "undefined" end)
test("undefined", function(v) return kind(v) == "undefined" end)
test("none", function(v) return v == none end)
test("boolean", function(v) return type(v) == "boolean" end)
test("true", function(v) return v == true end)
test("false", function(v) return v == false end)
test("integer", function(v) return type(v) == "number" or kind(v) == "big" end)
test("float", function(v) return kind(v) == "float" end)
test("number", function(v)
  local k = kind(v)
  return k == "int" or k == "bool" or k == "float" or k == "big"
end)
test("string", function(v) return base.text(v) ~= nil end)
test("mapping", function(v) return kind(v) == "dict" end)
test("sequence", function(v) -- what has a length and items
  local k = kind(v)
  return base.text(v) ~= nil or k == "list" or k == "tuple" or k == "dict" or k == "range" or k == "undefined"
end)
test("iterable", value.is_iterable)
test("callable", function(v) return callable[kind(v)] or kind(v) == "undefined" end)
test("escaped", function(v) return kind(v) == "markup" end)
test("lower", function(v)
  local s = value.str(v)
  return s == text.lower(s) and s ~= text.upper(s)
end)
test("upper", function(v)
  local s = value.str(v)
  return s == text.upper(s) and s ~= text.lower(s)
end)
local function remainder(v, by)
  local r = arith.mod(v, by)
  return base.number(r)
end
test("odd", function(v) return remainder(v, 2) == 1 end)
test("even", function(v) return remainder(v, 2) == 0 end)
test("divisibleby", function(v, a) return remainder(v, a[1]) == 0 end, 1)
test("in", function(v, a) return value.contains(a[1], v) end, 1)
test("sameas", function(v, a) return v == a[1] and kind(v) == kind(a[1]) end, 1)
for names, f in pairs { ["eq equalto =="] = value.eq, ["ne !="] = function(a, b) return not value.eq(a, b) end,
  ["lt lessthan <"] = value.lt, ["le <="] = value.le, ["gt greaterthan >"] = value.gt, ["ge >="] = value.ge } do
  for name in names:gmatch "%S+" do test(name, function(v, a) return f(v, a[1]) end, 1) end
end
test("filter", function(v) return require("pl.jinja.filters")[base.hash(v)] ~= nil end)
test("test", function(v) return wants[base.hash(v)] ~= nil end)

--- Apply a test that was found in M.
function M.apply(name, v, a, kw)
  if a.n ~= wants[name] or kw and next(kw) then
    fail("python", "test '%s' takes %d arguments", name, wants[name])
  end
  return M[name](v, a) and true or false
end

function M.known(name) return wants[name] ~= nil end
function M.takes(name) return wants[name] end

return M
