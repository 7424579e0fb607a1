-- Files that are sound for their parsers and wrong all the same (tests/fuzz/models.lua found them).
local model, checkpoint = require "pl.model", require "pl.checkpoint"
local verdicts = dofile "tests/verdicts.lua"
local verdict = verdicts.ok
local function is_nan(v) return type(v) == "number" and v ~= v end

local files = dofile "tests/files.lua"
local read, write = files.read, files.write
local dir = os.tmpname()
os.remove(dir)

-- NaNs: LuaJIT keeps type tags in the bits of NaNs, so that one which reached Lua as it stands in a file would be a
-- value of another type, with an address of the file's choosing. Here they are the final norm.
local function spoiled(name, pattern)
  os.execute(("rm -rf %s; cp -r tests/data/%s %s"):format(dir, name, dir))
  local file = dir .. "/model.safetensors"
  local s = read(file)
  local head = 0
  for i = 4, 1, -1 do head = head * 256 + s:byte(i) end
  local from, to = s:match('"model%.norm%.weight":{[^}]*"data_offsets": ?%[(%d+), ?(%d+)%]')
  from, to = from + 9 + head, to + 8 + head
  write(file, s:sub(1, from - 1) .. pattern:rep((to - from + 1) / #pattern) .. s:sub(to + 1))
end

for _, c in ipairs { { "tiny-llama-yarn", "\255\255" }, { "tiny-llama-yarn", "\254\255" },
  { "tiny-llama-yarn", "\193\127" }, { "tiny-llama3", "\255\255" },
  { "tiny-llama-linear", "\255\255\255\255" }, { "tiny-llama-linear", "\0\0\236\255" } } do
  spoiled(c[1], c[2])
  local what = ("%s with %q"):format(unpack(c))
  for _, act in ipairs { "f32", "bf16" } do
    local m = model.load(dir, { act = act, threads = 1, context = 64 })
    local r = m:score({ 1, 2, 3, 4 }, 3)
    verdict(is_nan(r.nll) and is_nan(r.nlls[1]) and #r.top == 3 and is_nan(r.top[1][2]), what .. ": score")
    verdict(is_nan(m:logits({ 1, 2 }):values()[1]), what .. ": logits")
    verdict(m:generate({ prompt = { 1, 2 }, max_tokens = 2, logprobs = 2 }).finish == "error", what .. ": generate")
    local t = m.checkpoint:tensor "model.norm.weight"
    verdict(is_nan(t:values()[1]) and is_nan(t:at(0)), what .. ": values")
    verdict(tostring(t):find "nan", what .. ": as text")
    t:close()
    m:close()
  end
end
do -- the verb has no use for NaN
  local p = io.popen(("%s/perilune score %s --ids 1,2,3 2>&1; echo $?"):format(os.getenv "PL_BUILD" or "build", dir))
  local said = p:read "*a"
  p:close()
  verdict(said:find("the logits are no numbers", 1, true) and said:find "\n1\n$", "perilune score: " .. said)
end
os.execute("rm -r " .. dir)

-- More layers than there are weights: refused before anything is made of them.
os.execute(("cp -r tests/data/tiny-llama3 %s"):format(dir))
local config = read(dir .. "/config.json")
for _, n in ipairs { "1000", "2147483647" } do
  write(dir .. "/config.json", (config:gsub('("num_hidden_layers": )%d+', "%1" .. n)))
  local ok, e = pcall(model.open, dir)
  verdict(not ok and tostring(e):find "layers, but the checkpoint has %d+ weights", n .. " layers: " .. tostring(e))
end
os.execute("rm -r " .. dir)

-- Metadata of GGUF files.
local s = read "tests/data/tiny-qwen2-gguf/model.gguf"
local at = select(2, s:find("qwen2.rope.freq_base", 1, true)) + 5
for _, bits in ipairs { "\255\255\255\255", "\0\0\236\255", "\1\0\192\127", "\0\0\128\127" } do
  write(dir, s:sub(1, at - 1) .. bits .. s:sub(at + 4))
  local c = checkpoint.open(dir)
  local v = c:get("rope_theta", "rope.freq_base")
  verdict(type(v) == "number" and (v ~= v or v == math.huge), ("freq_base %q: %s"):format(bits, type(v)))
  c:close()
  local ok, e = pcall(model.open, dir)
  verdict(not ok and tostring(e):find "want a finite number", ("freq_base %q: %s"):format(bits, tostring(e)))
end
os.remove(dir)

verdicts.done()
