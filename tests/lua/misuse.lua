-- A session closes, breaks and pokes what it can reach from a model: every use after that raises or works, and none
-- ends the process. Each round is a process of its own.
-- luacheck: no max line length
local perilune = (os.getenv "PL_BUILD" or "build") .. "/perilune"
local verdicts = dofile "tests/verdicts.lua"
local verdict = verdicts.ok

-- What the REPL prints when it is fed with a text, and its exit code.
local function session(text)
  local file = os.tmpname()
  local f = assert(io.open(file, "wb"))
  f:write(text)
  f:close()
  local p = io.popen(("%s <%s 2>&1; echo \" $?\""):format(perilune, file))
  local out, code = p:read("*a"):match "^(.*) (%d+)\n$"
  p:close()
  os.remove(file)
  return out, tonumber(code)
end

-- m is a model with a request under way and all that is opened when first asked for; uses() tries everything.
local before = [[
path = "%s"
m = pl.load(path, { act = "f32", context = 64 })
m:submit { ids = { 5, 6, 7 }, max_tokens = 4 }; m:step(); m:prof { steps = 10 }
tok = m:tokenizer(); pcall(m.chat_template, m); text = ("a b "):rep(1000)
m:submit { prompt = text, max_tokens = 1 }; t = pl.tensor { { 1, 2 }, { 3, 4 } }
function uses()
  local all = { "generate", { prompt = "a", max_tokens = 2 }, "generate", { ids = { 3 }, max_tokens = 2 }, "logits", { 3 },
    "score", { 3, 4 }, "embed", { 3 }, "submit", { ids = { 3 } }, "submit", { prompt = text }, "step", nil, "metrics", nil,
    "prof", nil, "incidents", nil, "plan", nil, "tree", nil, "kv", nil, "tokenizer", nil, "stops", nil, "set_policy", "fair",
    "ids", "some text", "chat_template", nil, "render", { messages = {} }, "talk", nil, "calibrate", { 3, 4 },
    "pooling", nil, "check_scales", nil, "start", 32, "step", nil }
  for i = 1, 52, 2 do if all[i] then pcall(function() return tostring(m[all[i] ](m, all[i + 1])) end) end end
  pcall(tostring, m); pcall(function() return tok:decode(tok:encode "a") end)
  pcall(function() return t + t, m.dev:path(), m.engine.kv, pl.zeros { 2 } end)
  collectgarbage(); collectgarbage()
end
-- every object below v that can be closed, in the same order every time
function closable(v)
  local list, seen = {}, {}
  local function walk(x, depth)
    if type(x) == "cdata" then
      local ok, close = pcall(function() return x.close end)
      if ok and close then list[#list + 1] = x end
    end
    if type(x) ~= "table" or seen[x] or depth > 4 then return end
    seen[x] = true
    local keys = {}
    for k in next, x do keys[#keys + 1] = k end
    table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
    if depth > 0 then
      local ok, close = pcall(function() return x.close end)
      if ok and type(close) == "function" then list[#list + 1] = x end
    end
    for _, k in ipairs(keys) do walk(x[k], depth + 1) end
  end
  walk(v, 0)
  return list
end
]]
local after = [[
uses()
m:close(); m:close()
uses()
"alive"
]]

local function round(what, text, path)
  local out, code = session((before:gsub("%%s", path or "tests/data/tiny-llama")) .. text .. "\n"
    .. after)
  verdict(out:find '"alive"\n$' and code == 0, ("%s: exit code %s, %s"):format(what, tostring(code), out:sub(-300)))
  return out
end

for _, path in ipairs { "tests/data/tiny-llama", "tests/data/tiny-llama-gguf/model.gguf" } do
  local out = round(path, "#closable(m)", path)
  local n = tonumber(out:match "(%d+)\n")
  verdict(n and n > 5, "there is something to close: " .. out)
  for i = 1, math.min(n or 0, 12) do -- the rest are weights
    round(("the object %d of %s"):format(i, path), ("closable(m)[%d]:close()"):format(i), path)
  end
  round("all of " .. path, "for _, x in ipairs(closable(m)) do pcall(x.close, x) end", path)
  for _, name in ipairs { "dev", "checkpoint", "engine", "prog", "tok", "engine.front", "pool", "weights", "recipe.box" } do
    round(name, ("pcall(function() local x = m.%s; for _ = 1, 2 do x:close() end end)"):format(name), path)
  end
end
-- in the middle of a generation
for _, name in ipairs { "dev", "checkpoint", "engine", "prog", "tok", "engine.front" } do
  round(name .. " while it is used", ("pcall(m.generate, m, { ids = { 3 }, max_tokens = 8, "
    .. "stream = function() m.%s:close() end })"):format(name))
end
round("the model while it is used", "pcall(m.generate, m, { ids = { 3 }, max_tokens = 8, stream = function() m:close() end })")
round("a policy that closes", "m:set_policy(function(s) m:close() end)")
round("a policy that closes the engine", "m:set_policy(function(s) m.engine:close() end)")
-- the fields of what C has
for _, text in ipairs { "t.ndim = 4", "t.dim[0] = 1e9", "t.dim[1e9]", "t.dim[1e9] = 1", "t.stride[0] = 1e9", "t.data = nil",
  "t.dtype = 99", "t.layout = 1", "t.storage = nil", "t[1e9]", "t[1e9] = 1", "t.shape[1] = 1e9", "m.engine.kv[0]",
  "m.engine.ptr[0]", "m.dev.ptr[0]", "m.dev.stream[0]", "m.prog.ptr[1e9]", "m.engine.state.queue.running[0][0]",
  "m.engine.front.ptr[0]", "m.tok.ptr[0]", "m.checkpoint.ptr[0]",
  "m.engine.ptr = nil", "m.engine.kv = nil", "m.prog.ptr = nil", "m.tok.ptr = nil", "m.dev.ptr = nil", "m.dev.stream = nil",
  "m.engine.front.ptr = nil", "m.engine.front.inbox = nil; m.engine.front.outbox = nil", "m.checkpoint.ptr = nil",
  "m.engine.kv = m.engine.ptr", "m.context = 1e9", "m.pool.tokens = 1e6; m.pool.batch = 1e6", "m.trace.vocab = 1e6",
  "m.engine.page = 0", "m.engine.requests = nil", "m.weights = nil; m.checkpoint = nil", "m.engine.state = nil",
  "m.engine.step({})", "m.engine.metrics({})", "m.engine.submit({}, { ids = { 1 } })", "m.engine:cancel({})", "m.engine.close({})",
  "s = m.engine.state; m.engine:close(); s.look()", "s = m.engine.state; m.engine:close(); s.plan(function(x) x:running() end)",
  "m.engine.front.ask({}, 1, 1, 0, 'x')", "m.engine.front:ask(1, 77, 0, 'x'); m:step()", "m.engine.front.drop({}, 1)",
  "m.checkpoint.info()", "m.checkpoint.value()", "m.checkpoint.text()", "m.checkpoint.take(1e9)", "m.checkpoint.take()",
  "m.prog.close({})", "m.dev.close({})", "m.tok.close({})", "m.close({})", "t.close({})", "m.generate({}, 'x')" } do
  local out = round(text, text .. "\nt")
  verdict(out:find("f32[2,2]\n         1        2\n         3        4\n", 1, true), text .. ": the tensor is as it was: " .. out)
end

-- errors that cannot be shown do not end it, nor does anything that a line leaves behind
for _, text in ipairs { "error(setmetatable({}, { __tostring = function() error 'x' end }))",
  "error(setmetatable({}, { __tostring = function() return 5 end }))",
  "error(setmetatable({}, { __tostring = function() error(setmetatable({}, { __tostring = error })) end }))",
  "setmetatable({}, { __tostring = function() error 'x' end })", "setmetatable({}, { __index = error, __tostring = error })",
  "error(nil)", "error()", "error(error)", "error(io.stdout)", "coroutine.yield()", "string.rep = 1", "local function f() f() end f()",
  "local function f() return 1 + f() end f()", "x = {} for i = 1, 40 do x = { x } end", "debug.sethook()",
  "{ [setmetatable({}, { __tostring = error })] = 1 }", "setmetatable({}, { __metatable = 5 })", "('x'):rep(2 ^ 33)",
  "_G.tostring = nil", "_G.pcall = nil", "_G.type = nil", "_G.select = nil" } do
  local out, code = session(text .. "\nio.write 'alive\\n'\n")
  verdict(out:find "alive\n" and code == 0, ("%s: exit code %s, %s"):format(text, tostring(code), out:sub(-300)))
end
local path = os.tmpname()
local f = assert(io.open(path, "wb"))
f:write "error(setmetatable({}, { __tostring = function() error 'x' end }))"
f:close()
for _, args in ipairs { path, ("-e '%s'"):format "error(setmetatable({}, { __tostring = error }))" } do
  local p = io.popen(("%s %s 2>&1; echo \" $?\""):format(perilune, args))
  local out = p:read "*a"
  p:close()
  verdict(out == "error object is a table, which cannot be shown\n 1\n", args .. ": " .. out)
end
os.remove(path)

verdicts.done()
