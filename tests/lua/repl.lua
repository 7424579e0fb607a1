-- The REPL as a user of a pipe sees it: no prompt, an error never ends it, chunks over several lines, values
-- printed.
-- luacheck: no max line length
local perilune = (os.getenv "PL_BUILD" or "build") .. "/perilune"
local verdicts = dofile "tests/verdicts.lua"
local verdict = verdicts.ok

-- stdout, stderr and the exit code of the REPL fed with these lines
local function session(text, args)
  local file, errors = os.tmpname(), os.tmpname()
  local f = assert(io.open(file, "wb"))
  f:write(text)
  f:close()
  local p = io.popen(("%s %s <%s 2>%s; echo \" $?\""):format(perilune, args or "", file, errors))
  local out = p:read "*a"
  p:close()
  local e = io.open(errors)
  local said = e:read "*a"
  e:close()
  os.remove(file)
  os.remove(errors)
  local body, code = out:match "^(.*) (%d+)\n$"
  return body, said, tonumber(code)
end

local function expect(text, out, said)
  local got, errors, code = session(text)
  verdict(got == out, ("%s\n  printed: %s\n  want: %s\n  stderr: %s"):format(text, got, out, errors))
  verdict(code == 0, text .. ": exit code " .. tostring(code))
  if said == nil then verdict(errors == "", text .. "\n  stderr: " .. errors)
  else verdict(errors:find(said, 1, true), ("%s\n  stderr: %s\n  want: %s"):format(text, errors, said)) end
end

expect("1 + 1\n", "2\n")
expect("= 1 + 1, 'a'\n", "2\t\"a\"\n")
expect("x = 3\nx * 2\n", "6\n")
expect("for i = 1, 2 do\n  print(i)\nend\n", "1\n2\n")
expect("function f(a)\n\n  return a\nend\nf(7)\n", "7\n")
expect("1 +\n2\n", "3\n")
expect("x = (\n5)\nx\n", "5\n")
expect("end\n1\n", "1\n", "'<eof>' expected near 'end'")
expect("nil\n", "nil\n")
expect("local y = 1\n", "")
expect("{ 1, 2, b = 'x' }\n", "{ 1, 2, b = \"x\" }\n")
expect("error 'boom'\n1\n", "1\n", "boom")
expect("nope.x\n1\n", "1\n", "attempt to index global 'nope'")
expect("a b c\n1\n", "1\n", "line 1:")
expect("error({})\n1\n", "1\n", "")
expect("error(setmetatable({}, { __tostring = function() return 'mine' end }))\n1\n", "1\n", "mine")
expect("coroutine.wrap(function() error 'inside' end)()\n1\n", "1\n", "inside")
expect("for i = 1, 2 do\n", "", "not finished")
expect("pl.tensor { { 1, 2 }, { 3, 4.5 } }\n", "f32[2,2]\n         1        2\n         3   4.5000\n")
expect("x = pl.tensor { { 1, 2, 3 } }; x + x\n", "f32[1,3]\n         2        4        6\n")
expect("x = pl.tensor { 1, 2, 3 }; x + x\n1\n", "1\n", "add: a has 1 dimensions, want at least 2")
expect("op.swiglo(1)\n1\n", "1\n", "did you mean 'swiglu'?")
expect("op.rms_norm(pl.zeros { 2, 4 }, pl.zeros { 5 }, 1e-6)\n1\n", "1\n", "w is [5] but D = 4 from x")
expect("x = pl.zeros { 2 }; x:close(); x:close(); x\n", "closed\n")
expect("pl.zeros { 2, 8 }:slice(2, 2, 3)\n",
  "f32[2,3]\n         0        0        0\n         0        0        0\n")
expect("pl.load 'no/such/model'\n1\n", "1\n", "no/such/model")
expect("m = pl.load 'tests/data/tiny-llama'; m\n",
  "model 'llama': 4 layers, 192 wide, 1024 tokens, from tests/data/tiny-llama (act bf16)\n")
expect("m = pl.load('tests/data/tiny-llama', { act = 'f32' }); table.concat(m:generate { prompt = { 333 }, max_tokens = 4 }.ids, ' ')\n",
  "\"262 71 16 223\"\n")
expect("m = pl.load('tests/data/tiny-llama', { act = 'f32' }); y = m:logits { 333 }; y:size(1), ('%.3f'):format(y:at(262))\n",
  "1024\t\"3.771\"\n")
expect("m = pl.load 'tests/data/tiny-llama'; m:generate { prompt = { 333 }, max_tokns = 4 }\n1\n", "1\n",
  "did you mean 'max_tokens'?")
-- an error or a break within each_layer leaves no layer behind
expect("for i in pl.each_layer(2) do error 'x' end\nrequire('pl.trace').layer()\n", "nil\n", "x")
expect("for i in pl.each_layer(2) do break end\nrequire('pl.trace').layer()\n", "nil\n")
-- what people type to leave, and to be helped; a variable of that name is one
for _, word in ipairs { "quit", "exit", "quit()", " exit ( ) ", "/quit", ":exit" } do expect("1\n" .. word .. "\n2\n", "1\n") end
for _, word in ipairs { "help", "help()", "/help" } do
  local shown = session(word .. "\n1\n")
  verdict(shown:find("m = pl.load", 1, true) and shown:find "leaves%.\n1\n$", word .. ": " .. shown)
end
expect("quit = 5\nquit\n", "5\n")
expect("function exit() return 7 end\nexit()\n", "7\n")
expect("for i = 1, 1 do\nquit = i\nend\nquit\n", "1\n")
verdict(session("", "-e quit") == "" and session("", "-e help"):find "pl.load", "-e quit, -e help")
-- forward, eagerly, gives what the program gives
expect([[m = pl.load('tests/data/tiny-llama', { act = 'f32' }); require("pl.tensor").act = "f32"
w, kv = m:tree(), m:kv()
ids = kv:begin { 5, 6, 7 }; y = m.recipe.forward(ids, w, kv, m.d); kv:commit()
a, b, worst = y:values(), m:logits { 5, 6, 7 }:values(), 0
for i = 1, #a do worst = math.max(worst, math.abs(a[i] - b[i])) end
y:describe(), worst
]], "\"f32[1,1024]\"\t0\n")

-- a file, its arguments, and its errors
local path = os.tmpname()
local f = assert(io.open(path, "wb"))
f:write "#!/usr/bin/env perilune\nprint(pl.op ~= nil, arg[1], ...)\nlocal t = nil\nt.x = 1\n"
f:close()
local out, said, code = session("", path .. " one")
verdict(out == "true\tone\tone\n" and code == 1, "file: " .. out .. said)
verdict(said:find(":4: attempt to index", 1, true) and said:find("t.x = 1", 1, true), "file's error: "
  .. said)
os.remove(path)

verdicts.done()
