-- Attempts to get out of the sandbox, or to hold it up. Each text must end in an error (or in "safe"), soon,
-- and leave the interpreter as it was.
-- luacheck: no max line length
local sandbox, err = require "pl.sandbox", require "pl.err"

local limits = { instructions = 2e6, seconds = 5, megabytes = 64 }
local verdicts = dofile "tests/verdicts.lua"
local verdict = verdicts.ok

local function run(text)
  local box = sandbox.new({ pl = require("pl").for_recipes }, limits)
  return pcall(function() return box:call(box:load(text, "try.lua")) end)
end

-- { text, what the error must contain }
local refused = {
  { "io.open 'x'", "no 'io'" }, { "os.exit(3)", "no 'os'" }, { "ffi.C.abort()", "no 'ffi'" },
  { "require 'ffi'", "require only pl" }, { "require 'os'", "require only pl" }, { "require 'pl.abi'",
    "require only pl" },
  { "debug.sethook()", "no 'debug'" }, { "jit.on()", "no 'jit'" }, { "package.loaded.os.exit()",
    "no 'package'" },
  { "load 'return 1'", "no 'load'" }, { "loadstring 'return 1'", "no 'loadstring'" }, { "dofile 'x'",
    "no 'dofile'" },
  { "setfenv(1, {})", "no 'setfenv'" }, { "getfenv(0)", "no 'getfenv'" }, { "newproxy()", "no 'newproxy'" },
  { "collectgarbage 'stop'", "no 'collectgarbage'" }, { "string.dump(print)", "has no 'dump'" },
    { "(''):dump()", "attempt to call" },
  { "getmetatable('').__index = nil", "attempt to index" }, { "x = 1", "sets no globals" }, { "_G.y = 1",
    "sets no globals" },
  { "string.rep = nil", "cannot be set" }, { "rawset(string, 'rep', 1)", "belongs to perilune" },
  { "require('pl').op = nil", "cannot be set" }, { "require('pl').op.linear = nil", "cannot be changed" },
  { "require('pl').load 'x'", "pl has no 'load'" }, { "setmetatable(require 'pl', {})",
    "protected metatable" },
  { "setmetatable('', {})", "want a table" }, { "return ('x'):rep(1e9)", "at most" },
    { "return ('x'):rep(1e9, 'y')", "at most" },
  { "local s = ('a'):rep(1000); return s:find(('.-'):rep(20) .. 'b')", "too long" },
  { "local s = ('a'):rep(1000); return s:match(('a?'):rep(30) .. ('a'):rep(30))", "too long" },
  { "local s = ('a'):rep(1e5); return s:gsub('a*-b', '')", "too long" },
  { "local s = ('a'):rep(1e5); for _ in s:gmatch '.-.-b' do end", "too long" },
  { "return ('a'):rep(1e5):gsub('.', ('b'):rep(1e5))", "too long" },
  { "return ('a'):rep(1e3):gsub('.', function() return ('b'):rep(1e5) end)", "too long" },
  { "return ('%99999999d'):format(1)", "invalid" },
    { "local s = ('a'):rep(2^20); return ('%s%s'):format(s, s)", "too long" },
  { "local t = {} for i = 1, 100 do t[i] = ('a'):rep(1e5) end return table.concat(t)", "too long" },
  { "table.insert({}, -2e9, 1)", "position" }, { "table.remove({ 1, 2 }, -2e9)", "position" },
  { "local s = 'x' while true do s = s .. s end", "used m" },
  { "local t = {} while true do t = { t } end", "instructions" },
  { "while true do end", "instructions" }, { "repeat until false", "instructions" },
    { "for i = 1, 1e18 do end", "instructions" },
  { "local function f() return f() end f()", "instructions" },
    { "local function f() f() end while true do pcall(f) end", "instructions" },
  { "while true do pcall(error) end", "instructions" }, { "pcall(function() while true do end end) return 1",
    "instructions" },
  { "xpcall(function() while true do end end, function() return 1 end) return 1", "instructions" },
  { "xpcall(error, function() while true do end end) return 1", "instructions" },
  { "local c = coroutine.create(function() while true do end end) coroutine.resume(c) return 1",
    "instructions" },
  { "local f = coroutine.wrap(function() while true do coroutine.yield() end end) while true do f() end",
    "instructions" },
  { "local t = setmetatable({}, { __index = function() while true do end end }) pcall(function() return t.x end) return 1", "instructions" },
  { "local t = setmetatable({}, { __tostring = function() while true do end end }) pcall(tostring, t) return 1", "instructions" },
  { "table.sort({ 3, 2, 1 }, function() while true do end end)", "instructions" },
  { "('x'):gsub('x', function() while true do end end)", "instructions" },
  { "pcall(pcall, function() while true do end end) return 1", "instructions" },
  { "error({})", "error object is a table" },
    { "error(setmetatable({}, { __tostring = function() while true do end end }))", "error object" },
  { "return error()", "error object" },
  { "local function f() return coroutine.wrap(f)() end f()", "nested" },
  { "local function f() return (('x'):gsub('x', f)) end f()", "nested" },
  { "local function f(a, b) table.sort({ 1, 2 }, f) return a < b end f(1, 2)", "nested" },
  { "error(setmetatable({ notes = {}, msg = 'x' }, { __tostring = function() while true do end end }))", "error object" },
  { "goto = 1", "" }, { "\27LJ\2", "bytecode" },
}
for _, c in ipairs(refused) do
  local t = os.clock()
  local ok, e = run(c[1])
  local text = not ok and err.is(e) and tostring(e) or "no error object: " .. tostring(e)
  verdict(not ok and text:find(c[2], 1, true) and not text:find "no error object", c[1] .. "\n     " .. text)
  verdict(os.clock() - t < 6, ("%s took %.1f s"):format(c[1], os.clock() - t))
  verdict(getmetatable("").__index == string and debug.gethook() == nil, c[1] .. " left something behind")
end

-- what recipes may do
local allowed = {
  { "local t = {} for i = 1, 10 do table.insert(t, i) end table.sort(t, function(a, b) return a > b end) return table.concat(t, ',')", "10,9,8,7,6,5,4,3,2,1" },
  { "return ('model.layers.12.mlp'):match '^model%.layers%.(%d+)%.(.+)$'", "12" },
  { "return (('a-b'):gsub('%-', '+'))", "a+b" }, { "return ('%d %s'):format(3, 'x')", "3 x" },
  { "local ok, e = pcall(error, 'x') return tostring(ok) .. e", "falsex" },
  { "return select(2, xpcall(function() error 'boom' end, function(e) return 'h:' .. e:match '%a+$' end))",
    "h:boom" },
  { "local f = coroutine.wrap(function(a) local b = coroutine.yield(a + 1) return b * 2 end) return f(1) + f(5)", 12 },
  { "return math.floor(2.5) + #('abc')", 5 }, { "return tostring(rawget(_G, 'io'))", "nil" },
  { "local mt = getmetatable(require 'pl') return tostring(mt)", "nil" },
}
for _, c in ipairs(allowed) do
  local ok, v = run(c[1])
  verdict(ok and v == c[2], ("%s: %s, want %s"):format(c[1], tostring(v), tostring(c[2])))
end
verdicts.done()
