-- perilune pack: the packed file gives the bits that the model gives, for every format and act; one that does not fit
-- any more is refused with the command that writes it again; check finds damage; what cannot be written leaves nothing.
local model, pack, checkpoint = require "pl.model", require "pl.pack", require "pl.checkpoint"
local abi = require "pl.abi"
local verdicts = dofile "tests/verdicts.lua"
local verdict = verdicts.ok
local build = os.getenv "PL_BUILD" or "build"
local dir = os.tmpname()
os.remove(dir)
assert(os.execute("mkdir " .. dir) == 0)
local files = dofile "tests/files.lua"
local read, write = files.read, files.write
local function sh(command, ...)
  local p = assert(io.popen((command .. " 2>&1; echo \" status $?\""):format(...)))
  local out = p:read "*a"
  p:close()
  return tonumber(out:match " status (%d+)%s*$"), (out:gsub(" status %d+%s*$", ""))
end
local function raised(f, ...)
  local ok, e = pcall(f, ...)
  return not ok and tostring(e) or ""
end

-- Logits after each token of a prompt, as bytes, and tokens that follow.
local ids = { 1, 33, 28, 65, 41, 47, 12, 99, 7 }
local function answers(path, o)
  local m = model.load(path, o)
  local t = m:logits(ids, #ids)
  local n = #ids * m.trace.vocab * 4
  local logits = abi.text(abi.cast("const char *", t.data), n)
  local g = m:generate { ids = ids, max_tokens = 8, ignore_eos = true }
  t:close()
  m:close()
  return logits, table.concat(g.ids, " ")
end

local models = { "tiny-llama", "tiny-llama-gguf/model.gguf", "tiny-qwen2", "tiny-qwen2-gguf/model.gguf", "tiny-qwen3",
  "tiny-qwen3-gguf/model.gguf", "tiny-gemma3", "tiny-llama3", "tiny-llama-linear", "tiny-llama-yarn" }
for k, name in ipairs(models) do
  local source, out = "tests/data/" .. name, ("%s/%d.perilune"):format(dir, k)
  local path, bytes = pack.write(source, { out = out })
  verdict(path == out and bytes == #read(out), name .. ": path and bytes")
  for i, act in ipairs { "bf16", "int8", "int15", "f32" } do
    for _, where in ipairs(i % 2 == k % 2 and { "auto", "portable" } or { "auto" }) do
      local o = { act = act, context = 64, path = where ~= "auto" and where or nil }
      local logits, tokens = answers(source, o)
      local packed, same = answers(out, o)
      verdict(logits == packed and tokens == same, ("%s, act %s, path %s: other bits"):format(name, act, where))
    end
  end
  local code, text = sh("%s/perilune check %s", build, out)
  verdict(code == 0 and text:find "as they were written: fine", "check: " .. text)
end

-- Everything that a model is asked is answered as before.
local llama = dir .. "/1.perilune"
local c, d = checkpoint.open "tests/data/tiny-llama", checkpoint.open(llama)
verdict(d.packed and not c.packed and d.format == "hf" and d.arch == c.arch, "what it is")
verdict(d.text "config.json" == c.text "config.json" and d.text "no.json" == nil, "texts")
verdict(d:int("hidden_size") == 192 and d:tied(false) == c:tied(false), "metadata")
c:close()
d:close()
for _, verb in ipairs { "tokenize", "plan", "score --ids 1,2,3", "run --ids 1,2,3 --max-tokens 4 --json" } do
  local v, rest = verb:match "^(%S+)(.*)"
  local strip = function(s) return (s:gsub('"timings":%b{}', ""):gsub('"memory":%b{}', "")) end
  local c1, a = sh("echo hello there | %s/perilune %s tests/data/tiny-llama %s", build, v, rest)
  local c2, b = sh("echo hello there | %s/perilune %s %s %s", build, v, llama, rest)
  verdict(c1 == 0 and c2 == 0 and strip(a) == strip(b), verb .. ":\n" .. a .. b)
end

-- What it was packed for is what it runs with, unless another is wanted.
pack.write("tests/data/tiny-llama-gguf/model.gguf", { out = dir .. "/a.perilune", act = "int8" })
local m = model.open(dir .. "/a.perilune")
verdict(m.pool.act == "int8", "act of the file")
m.checkpoint:close()
m = model.open(dir .. "/a.perilune", { act = "f32" })
verdict(m.pool.act == "f32", "act that was asked for")
m.checkpoint:close()

-- Stale: the model changed, the recipe changed, the version is another, the layout is another.
write(dir .. "/my model.gguf", read "tests/data/tiny-llama-gguf/model.gguf")
local mine = dir .. "/m.perilune"
pack.write(dir .. "/my model.gguf", { out = mine, act = "int15" })
local command = ("perilune pack '%s/my model.gguf' -o %s --act int15"):format(dir, mine)
write(dir .. "/my model.gguf", read "tests/data/tiny-llama-gguf/model.gguf" .. " ")
local e = raised(model.open, mine)
verdict(e:find("has changed since", 1, true) and e:find(command, 1, true), "a changed model: " .. e)
local code, text = sh("%s/perilune run %s --ids 1", build, mine)
verdict(code == 1 and text:find(command, 1, true), "the verb says it too: " .. text)
local renewed = sh("PATH=%s:$PATH; %s", build, command)
verdict(renewed == 0 and raised(model.open, mine) == "", "the command renews it")
os.remove(dir .. "/my model.gguf")
verdict(raised(model.open, mine) == "", "a model that is not there is not missed")

local recipe = read "recipes/llama.lua"
local other, n = recipe:gsub('rest = "stored"', 'rest = "bf16"')
verdict(n == 1, "a recipe that converts")
write(dir .. "/r.lua", other)
e = raised(model.load, llama, { recipe = dir .. "/r.lua" })
verdict(e:find("the recipe wants 'rows, bf16'", 1, true)
  and e:find("--recipe " .. dir .. "/r.lua", 1, true), "another format: " .. e)
pack.write("tests/data/tiny-llama-gguf/model.gguf", { out = dir .. "/r.perilune", recipe = dir .. "/r.lua" })
-- what a file names is not run; the user says it again
e = raised(model.open, dir .. "/r.perilune")
verdict(e:find("packed with the recipe " .. dir .. "/r.lua", 1, true)
  and e:find("--recipe " .. dir .. "/r.lua", 1, true), "without its recipe: " .. e)
pack.write(dir .. "/r.lua", { out = dir .. "/w.perilune", weights = "tests/data/tiny-llama-gguf/model.gguf" })
e = raised(model.open, dir .. "/w.perilune")
verdict(e:find("r.lua", 1, true) and e:find("--recipe ", 1, true), "a recipe as the model: " .. e)
verdict(raised(model.open, dir .. "/w.perilune", { recipe = dir .. "/r.lua" }) == "", "with its recipe")
code, text = sh("%s/perilune check %s/w.perilune --recipe %s/r.lua", build, dir, dir)
verdict(code == 0 and text:find "as they were written: fine", "check with its recipe: " .. text)
pack.write("llama", { out = dir .. "/w.perilune", weights = "tests/data/tiny-llama-gguf/model.gguf" })
verdict(raised(model.open, dir .. "/w.perilune") == "", "one of our own")
local a1, b1 = answers("tests/data/tiny-llama-gguf/model.gguf", { recipe = dir .. "/r.lua", context = 64 })
local a2, b2 = answers(dir .. "/r.perilune", { recipe = dir .. "/r.lua", context = 64 })
verdict(a1 == a2 and b1 == b2, "what it converts is packed")

local file = read(llama)
local bad = dir .. "/bad.perilune"
write(bad, file:sub(1, 8) .. "\9" .. file:sub(10))
e = raised(checkpoint.open, bad)
verdict(e:find("version 9, this perilune reads version 1", 1, true)
  and e:find("tests/data/tiny-llama -o " .. bad, 1, true), "another version: " .. e)
write(bad, file:sub(1, 4096 + 100) .. string.char((file:byte(4097 + 100) + 1) % 256) .. file:sub(4096 + 102))
code, text = sh("%s/perilune check %s", build, bad)
verdict(code == 1 and text:find "is damaged: its digest does not match", "check finds damage: " .. text)
write(bad, file:sub(1, 4095) .. "\1" .. file:sub(4097))
code, text = sh("%s/perilune check %s", build, bad)
verdict(code == 1 and text:find "byte 4095, between the tensors, is damaged", "check finds damage between: " .. text)
for _, cut in ipairs { 0, 7, 8, 60, 71, 500, #file - 1 } do
  write(bad, file:sub(1, cut))
  e = raised(checkpoint.open, bad)
  verdict(#e > 0 and not e:find "traceback", "cut off at " .. cut .. ": " .. e)
end

-- A template that is wrong leaves no file mapped.
os.execute(("cp -r tests/data/tiny-llama %s/t.hf"):format(dir))
for k, template in ipairs { "{% if %}", "{{ raise_exception('no') }}" } do
  write(dir .. "/t.hf/chat_template.jinja", template)
  local t = ("%s/t%d.perilune"):format(dir, k)
  pack.write(dir .. "/t.hf", { out = t })
  collectgarbage()
  collectgarbage "stop"
  verdict(raised(require("pl.chat").open, t) ~= "", "a template that is wrong")
  local maps = io.open "/proc/self/maps"
  verdict(not maps:read "*a":find(t, 1, true), "a template that is wrong: the file is closed")
  maps:close()
  collectgarbage "restart"
end
write(dir .. "/t.hf/tokenizer_config.json", "[]")
pack.write(dir .. "/t.hf", { out = dir .. "/t3.perilune" })
collectgarbage()
collectgarbage "stop"
verdict(raised(require("pl.chat").open, dir .. "/t3.perilune"):find "not a JSON object", "a config that is wrong")
local maps = io.open "/proc/self/maps"
verdict(not maps:read "*a":find(dir .. "/t3.perilune", 1, true), "a config that is wrong: the file is closed")
maps:close()
collectgarbage "restart"

-- Killed while it writes: nothing is left.
os.execute(("%s/perilune pack tests/data/tiny-llama -o %s/killed.perilune & p=$!; sleep 0.05; kill -9 $p"):format(build,
  dir))
verdict(io.popen("ls " .. dir .. " | grep killed.perilune."):read "*a" == "", "a pack that was killed leaves nothing")

-- What cannot be written, and leaves nothing.
for _, case in ipairs {
  { "%s/perilune pack tests/data/tiny-llama -o %s/x.gguf", "want a name that ends in .perilune" },
  { "%s/perilune pack %s/1.perilune", "packed already", true },
  { "%s/perilune pack tests/data/no-such -o %s/x.perilune", "No such file" },
  { "%s/perilune pack tests/data/tiny-llama -o %s/no/x.perilune", "No such file" },
  { "B=%s D=%s; cp tests/data/tiny-llama-gguf/model.gguf $D/self.gguf; ln -s self.gguf $D/self.perilune;"
    .. " $B/perilune pack $D/self.gguf", "self.perilune is the model itself" },
  { "B=%s D=%s; cp -r tests/data/tiny-llama $D/self.hf; ln -s model.safetensors $D/self.hf/m.perilune;"
    .. " $B/perilune pack $D/self.hf -o $D/self.hf/m.perilune", "m.perilune is the model itself" },
  { "ulimit -f 100; %s/perilune pack tests/data/tiny-llama -o %s/x.perilune", "File too large" } } do
  code, text = sh(case[1], build, dir)
  verdict(code == 1 and text:find(case[2], 1, true), case[1] .. ": " .. text)
end
verdict(sh("cmp tests/data/tiny-llama-gguf/model.gguf %s/self.gguf", dir) == 0, "the model itself is as it was")
verdict(sh("cmp tests/data/tiny-llama/model.safetensors %s/self.hf/model.safetensors", dir) == 0, "and so are weights")
os.execute("rm -r " .. dir .. "/self.*")
local list = io.popen("ls " .. dir):read "*a"
verdict(not list:find "x%." and not list:find "%.perilune%.", "something is left: " .. list)
os.execute("rm -rf " .. dir)
verdicts.done()
