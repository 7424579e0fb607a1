-- A quantised checkpoint from the files to the logits: tiny-llama's products as INT4 of groups of 32
-- (compressed-tensors) give what the same weights widened to F32 give.
local checkpoint, abi = require "pl.checkpoint", require "pl.abi"
local passed, failed = 0, 0
local function verdict(ok, what)
  if ok then passed = passed + 1 else failed = failed + 1; print("FAIL " .. what) end
end
local source, build = "tests/data/tiny-llama", os.getenv "PL_BUILD" or "build"

local function write(path, s)
  local f = assert(io.open(path, "wb"))
  f:write(s)
  f:close()
end
local function read(path)
  local f = assert(io.open(path, "rb"))
  local s = f:read "*a"
  f:close()
  return s
end
local function number(ctype, v)
  return abi.text(abi.cast("const char *", abi.new(ctype .. "[1]", v)), abi.sizeof(ctype))
end

-- A safetensors file of { name, dtype, shape, bytes }.
local function safetensors(list)
  local head, data, at = {}, {}, 0
  for i, t in ipairs(list) do
    local form = '"%s":{"dtype":"%s","shape":[%s],"data_offsets":[%d,%d]}'
    head[i] = form:format(t[1], t[2], table.concat(t[3], ","), at, at + #t[4])
    data[i], at = t[4], at + #t[4]
  end
  local text = "{" .. table.concat(head, ",") .. "}"
  return number("int64_t", #text) .. text .. table.concat(data)
end

-- Codes and scales of values: each group's largest magnitude is 7 powers of two, so that a scale is exact.
local function int4(v, rows, cols)
  local codes, scales = abi.array("uint8_t", rows * cols / 2), abi.array("uint16_t", rows * cols / 32)
  local wide = abi.array("float", rows * cols)
  for g = 0, rows * cols / 32 - 1 do
    local top = 0
    for i = 1, 32 do top = math.max(top, math.abs(v[g * 32 + i])) end
    local _, e = math.frexp(top / 7)
    scales[g] = (e + 127) * 128 -- bf16 of 2^e
    for i = 0, 31 do
      local q = math.max(-8, math.min(7, math.floor(v[g * 32 + i + 1] / 2 ^ e + 0.5)))
      local at = g * 32 + i
      wide[at] = q * 2 ^ e
      codes[(at - at % 2) / 2] = codes[(at - at % 2) / 2] + (q + 8) * (at % 2 == 0 and 1 or 16)
    end
  end
  local function text(p, n) return abi.text(abi.cast("const char *", p), n) end
  return text(codes, rows * cols / 2), text(scales, rows * cols / 16), text(wide, rows * cols * 4)
end

local dir = os.tmpname()
os.remove(dir)
os.execute(("mkdir -p %s/q %s/f && cp %s/*.json %s/q && cp %s/*.json %s/f"):format(dir, dir, source, dir, source, dir))
local c = checkpoint.open(source)
local quantised, plain = {}, {}
local function f32(t)
  local n = t:count()
  local v = abi.array("float", n)
  abi.check(abi.C.pl_tensor_get_f32(t, v, n, abi.err))
  return abi.text(abi.cast("const char *", v), n * 4)
end
for _, name in ipairs(c.all()) do
  local t, shape = c:tensor(name), c.info(name).shape
  if name:find "proj%.weight$" then
    local codes, scales, wide = int4(t:values(), shape[1], shape[2])
    local m = name:gsub("weight$", "")
    quantised[#quantised + 1] = { m .. "weight_packed", "I32", { shape[1], shape[2] / 8 }, codes }
    quantised[#quantised + 1] = { m .. "weight_scale", "BF16", { shape[1], shape[2] / 32 }, scales }
    plain[#plain + 1] = { name, "F32", shape, wide }
  else
    local same = { name, "F32", shape, f32(t) }
    quantised[#quantised + 1], plain[#plain + 1] = same, same
  end
  t:close()
end
c:close()
write(dir .. "/q/model.safetensors", safetensors(quantised))
write(dir .. "/f/model.safetensors", safetensors(plain))
local how = [[, "quantization_config": { "quant_method": "compressed-tensors", "format": "pack-quantized",
  "ignore": ["lm_head"], "config_groups": { "group_0": { "targets": ["Linear"], "weights": { "num_bits": 4,
  "type": "int", "symmetric": true, "strategy": "group", "group_size": 32 } } } } }]]
local config = read(source .. "/config.json"):gsub("}%s*$", how)
write(dir .. "/q/config.json", config)

local function score(which, act)
  local command = "%s/perilune score %s/%s --act %s --ids 1,333,28,465,441,347,12,99 2>&1"
  local p = assert(io.popen(command:format(build, dir,
    which, act)))
  local text = p:read "*a"
  p:close()
  return tonumber(text:match "nll ([%d.]+) nats"), text
end
for _, act in ipairs { "f32", "bf16" } do
  local q, text = score("q", act)
  local f = score("f", act)
  verdict(q and f and math.abs(q - f) <= (act == "f32" and 1e-4 or 1e-2),
    ("act %s: %s, want %s\n%s"):format(act, tostring(q), tostring(f), text))
end
os.execute(("%s/perilune pack %s/q -o %s/p.perilune"):format(build, dir, dir))
local _, plain_text = score("q", "int8")
local _, packed_text = score("p.perilune", "int8")
verdict(plain_text:find "nll" and plain_text == packed_text, "packed:\n" .. plain_text .. packed_text)
local q = checkpoint.open(dir .. "/q")
verdict(q.info("model.layers.0.mlp.up_proj.weight").dtype == "i4g32", "the weight is listed as one")
verdict(q.info("model.layers.0.mlp.up_proj.weight_scale") == nil, "its parts are not listed")
verdict(q.count == 39, "39 weights")
q:close()
os.execute("rm -rf " .. dir)
print(("%d passed, %d failed"):format(passed, failed))
os.exit(failed == 0 and 0 or 1)
