-- Caches by format and bytes: fp8 holds twice the tokens of bf16; scales come from calibration, or are asked for; a hit
-- of the prefix cache changes nothing; requests that find no room wait, are preempted, and come out the same.
local model, cache = require "pl.model", require "pl.cache"
local verdicts = dofile "tests/verdicts.lua"
local verdict = verdicts.ok
local function fails(what, f, ...)
  local ok, e = pcall(f, ...)
  verdict(not ok, what .. ": no error")
  return tostring(e)
end
local tiny = "tests/data/tiny-llama"

-- the same bytes
local c = { layers = 3, heads = 2, key_dim = 64, value_dim = 32, page = 64 }
local bytes = 3 * 2 * 96 * 64 * 1000 + 17
local function tokens(kv, scale)
  local _, f = cache.options(c, { kv = kv, kv_scale = scale, cache_bytes = bytes }, 1)
  return f.tokens
end
verdict(tokens("fp8", "tensor") == 64000 and tokens("bf16") == 32000 and tokens("f32") == 16000, "twice the tokens")
verdict(tokens("fp8", "head") == tokens("fp8", "tensor") and tokens("fp8", "token") < 64000, "scales in the page")
local none = fails("a cache of no page", cache.options, c, { kv = "f32", cache_bytes = 100 }, 1)
verdict(none:find "one page of 64 tokens", "a cache of no page: " .. none)

-- scales
local text = {}
for i = 1, 150 do text[i] = (i * 37) % 900 + 20 end
local m = model.load(tiny, { act = "f32", kv = "f32", context = 256 })
local scales, n = m:calibrate(text, 100)
local want = m:score(text).nll
m:close()
verdict(n == 150 and #scales.key == scales.layers and #scales.value[1] == scales.heads, "calibrate: shapes")
local path = os.tmpname()
local function write(t)
  local f = assert(io.open(path, "wb"))
  f:write(type(t) == "string" and t or require("pl.json").encode(t))
  f:close()
end
local function load(o)
  o.kv, o.context = "fp8", o.context or 256
  return model.load(tiny, o)
end
verdict(fails("no scales", load, {}):find "perilune calibrate", "an fp8 cache without scales says how to get them")
write(scales)
for _, kind in ipairs { "tensor", "head", "token" } do
  local x = load { kv_scale = kind, kv_scales = kind ~= "token" and path or nil }
  local got = x:score(text).nll
  verdict(math.abs(got - want) < 0.03 and got ~= want, ("fp8, a scale per %s: nll %g, f32 %g"):format(kind, got, want))
  x:close()
end
for what, bad in pairs { ["not JSON"] = "{", ["a list"] = "[]",
  ["other layers"] = { layers = 1, heads = 2, key = {}, value = {} },
  ["no values"] = { layers = scales.layers, heads = scales.heads, key = scales.key } } do
  write(bad)
  verdict(fails(what, load, { kv_scales = path }):find(path, 1, true), what .. ": the file is named")
end
-- a recipe's scales are beside it
do
  write(scales)
  local dir = os.tmpname()
  os.remove(dir)
  os.execute(("mkdir %s; mv %s %s/s.json"):format(dir, path, dir))
  local f = assert(io.open(dir .. "/mine.lua", "w"))
  f:write((dofile("tests/files.lua").read "recipes/llama.lua"
    :gsub("pl%.pool {", "pl.pool { kv = 'fp8', kv_scales = 's.json',")))
  f:close()
  local x = model.load(tiny, { recipe = dir .. "/mine.lua", context = 256 })
  verdict(x.pool.kv == "fp8" and x:score(text).nll > 0, "scales beside the recipe")
  x:close()
  os.execute(("mv %s/s.json %s; rm -r %s"):format(dir, path, dir))
end
-- whose they are
local said = scales.weights_id
verdict(type(said) == "string" and #said == 32, "calibrate: whose scales")
scales.weights_id = ("0"):rep(32)
write(scales)
local other = fails("other weights", load, { kv_scales = path })
verdict(other:find(("%s:1: scales of other weights (%s), these are %s"):format(path, scales.weights_id, said), 1, true),
  "scales of other weights of the same shape: " .. other)
do -- the same weights as a packed file; other weights in the same file format
  local packed = os.tmpname() .. ".perilune"
  require("pl.pack").write(tiny, { out = packed })
  scales.weights_id = said
  write(scales)
  load({ kv_scales = path }):close()
  model.load(packed, { kv = "fp8", context = 64, kv_scales = path }):close()
  local files = dofile "tests/files.lua"
  local from, to = os.tmpname(), "tests/data/tiny-llama/"
  os.remove(from)
  os.execute(("cp -r %s %s"):format(to, from))
  local weights = files.read(from .. "/model.safetensors")
  for i = 1, 64 do -- behind the names
    local k = 65536 + math.floor((#weights - 65536) * i / 65)
    weights = weights:sub(1, k - 1) .. string.char((weights:byte(k) + 1) % 64) .. weights:sub(k + 1)
  end
  files.write(from .. "/model.safetensors", weights)
  other = require("pl.checkpoint").open(from)
  verdict(other.identity() ~= said, "a model trained further is another one")
  other:close()
  os.execute(("rm -r %s %s"):format(from, packed))
end
-- from before they said so: taken, with a warning
scales.weights_id = nil
write(scales)
local p = io.popen(("%s/perilune run %s --ids 1 --max-tokens 1 --kv fp8 --kv-scales %s 2>&1; echo $?"):format(
  os.getenv "PL_BUILD" or "build", tiny, path))
local older = p:read "*a"
p:close()
verdict(older:find "\n0\n$" and older:find(path .. ": are its scales for these weights? It is from before", 1, true),
  "an older file: " .. older)
scales.weights_id, scales.value[2][1] = said, 0
write(scales)
verdict(fails("a zero", load, { kv_scales = path }):find "'value' of layer 1: 0, want a number above 0", "a scale of 0")
os.remove(path)

-- the prefix cache, the queue, preemption: the same tokens as alone
local function prompt(salt, len)
  local t = {}
  for i = 1, len do t[i] = (i <= 70 and i * 7 or i * salt * 13) % 900 + 20 end
  return t
end
local function together(o, n_requests)
  local x = model.load(tiny, o)
  local rs = {}
  for i = 1, n_requests do
    rs[i] = x:submit { ids = prompt(i, 90 + i), max_tokens = 40, ignore_eos = true, tenant = i % 3 }
  end
  while x:step() > 0 do end
  local out = {}
  for i = 1, n_requests do out[i] = table.concat(rs[i].ids, " ") .. " " .. rs[i].finish end
  local metrics = x:metrics()
  x:close()
  return table.concat(out, "\n"), metrics
end
local alone, plain = together({ batch = 1, context = 256, prefix = false }, 8)
verdict(plain.cached_tokens == 0 and plain.finished.length == 8, "without a prefix cache")
local hits, found = together({ batch = 1, context = 1024 }, 8)
verdict(hits == alone and found.cached_tokens == 5 * 64, "a hit is a miss, bit for bit: " .. found.cached_tokens)
-- four at a time in seven pages: each takes three
local page_bytes = 64 * 4 * 2 * 32 * 2 * 2
local tight, squeezed = together({ batch = 4, cache_bytes = 7 * page_bytes, prefix = false }, 8)
verdict(tight == alone and squeezed.preempted > 0, ("preempted %d times"):format(squeezed.preempted))
verdict(squeezed.pages.free == 7 and squeezed.pages.owned == 0, "all pages come back")

-- another policy between steps; one that cannot be loaded leaves the old one
local x = model.load(tiny, { batch = 4, context = 256 })
local rs = {}
for i = 1, 6 do rs[i] = x:submit { ids = prompt(i, 90 + i), max_tokens = 40, ignore_eos = true, tenant = i % 3 } end
for _, name in ipairs { "fair", "deadline", "longest_prefix_first", "decode_first" } do
  x:step()
  x:set_policy(name)
end
verdict(fails("no such policy", x.set_policy, x, "fairr"):find "did you mean 'fair'", "a policy's nearest name")
while x:step() > 0 do end
local out = {}
for i = 1, 6 do out[i] = table.concat(rs[i].ids, " ") .. " " .. rs[i].finish end
verdict(alone:find(table.concat(out, "\n"), 1, true) == 1, "policies change nothing but the order")
-- a deadline that has passed; an incident ends with its own reason
local late = x:submit { ids = prompt(1, 80), max_tokens = 10, deadline = 1e-9 }
while x:step() > 0 do end
verdict(late.finish == "deadline" and #late.ids == 0, "past the deadline: " .. tostring(late.finish))
x:close()

verdicts.done()
