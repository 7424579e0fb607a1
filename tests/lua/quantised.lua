-- A quantised checkpoint from the files to the logits: tiny-llama's products as INT4 of groups of 32
-- (compressed-tensors) give what the same weights widened to F32 give; and as GPTQ with columns out of order.
local checkpoint, abi = require "pl.checkpoint", require "pl.abi"
local verdicts = dofile "tests/verdicts.lua"
local verdict = verdicts.ok
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

-- The same in GPTQ's layout; group(c): which group column c is in. Returns codes, scales, zero points, groups, values.
local function gptq(v, rows, cols, group)
  local n = cols / 32
  local codes, scales = abi.array("uint32_t", rows * cols / 8), abi.array("uint16_t", rows * n)
  local wide, index = abi.array("float", rows * cols), abi.array("int32_t", cols)
  for c = 0, cols - 1 do index[c] = group(c) end
  for r = 0, rows - 1 do
    local top = {}
    for c = 0, cols - 1 do top[index[c]] = math.max(top[index[c]] or 0, math.abs(v[r * cols + c + 1])) end
    for g = 0, n - 1 do
      local _, e = math.frexp(top[g] / 7)
      top[g], scales[g * rows + r] = e, (e + 15) * 1024 -- f16 of 2^e
    end
    for c = 0, cols - 1 do
      local unit, word = 2 ^ top[index[c]], (c - c % 8) / 8 * rows + r
      local q = math.max(-8, math.min(7, math.floor(v[r * cols + c + 1] / unit + 0.5)))
      wide[r * cols + c] = q * unit
      codes[word] = codes[word] + (q + 8) * 2 ^ (c % 8 * 4)
    end
  end
  local function text(p, bytes) return abi.text(abi.cast("const char *", p), bytes) end
  return text(codes, rows * cols / 2), text(scales, rows * n * 2), ("\119"):rep(rows * n / 2), text(index, cols * 4),
    text(wide, rows * cols * 4)
end
-- Groups of columns: those of v and of one up_proj are others than of what has the same input.
local function group_of(name, cols)
  local step = name:find "v_proj" and 5 or name:find "1.mlp.up" and 7 or name:find "down" and 3 or 11
  return function(c) return (c * step % cols - c * step % cols % 32) / 32 end
end

local dir = os.tmpname()
os.remove(dir)
for _, d in ipairs { "q", "f", "g", "h" } do
  os.execute(("mkdir -p %s/%s && cp %s/*.json %s/%s"):format(dir, d, source, dir, d))
end
local c = checkpoint.open(source)
local quantised, plain, sorted, sorted_plain = {}, {}, {}, {}
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
    local n, k = unpack(shape)
    local q, s, z, g, exact = gptq(t:values(), n, k, group_of(name, k))
    sorted[#sorted + 1] = { m .. "qweight", "I32", { k / 8, n }, q }
    sorted[#sorted + 1] = { m .. "scales", "F16", { k / 32, n }, s }
    sorted[#sorted + 1] = { m .. "qzeros", "I32", { k / 32, n / 8 }, z }
    sorted[#sorted + 1] = { m .. "g_idx", "I32", { k }, g }
    sorted_plain[#sorted_plain + 1] = { name, "F32", shape, exact }
  else
    local same = { name, "F32", shape, f32(t) }
    quantised[#quantised + 1], plain[#plain + 1], sorted[#sorted + 1], sorted_plain[#sorted_plain + 1] = same, same,
      same, same
  end
  t:close()
end
c:close()
write(dir .. "/q/model.safetensors", safetensors(quantised))
write(dir .. "/f/model.safetensors", safetensors(plain))
write(dir .. "/g/model.safetensors", safetensors(sorted))
write(dir .. "/h/model.safetensors", safetensors(sorted_plain))
local how = [[, "quantization_config": { "quant_method": "compressed-tensors", "format": "pack-quantized",
  "ignore": ["lm_head"], "config_groups": { "group_0": { "targets": ["Linear"], "weights": { "num_bits": 4,
  "type": "int", "symmetric": true, "strategy": "group", "group_size": 32 } } } } }]]
local config = read(source .. "/config.json"):gsub("}%s*$", how)
write(dir .. "/q/config.json", config)
write(dir .. "/g/config.json", (read(source .. "/config.json"):gsub("}%s*$",
  [[, "quantization_config": { "quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": true } }]])))

local function score(which, act)
  local command = "%s/perilune score %s/%s --act %s --ids 1,333,28,465,441,347,12,99 2>&1"
  local p = assert(io.popen(command:format(build, dir,
    which, act)))
  local text = p:read "*a"
  p:close()
  return tonumber(text:match "nll ([%d.]+) nats"), text
end
for i = 1, 4 do
  local act = i % 2 == 1 and "f32" or "bf16"
  local q, text = score(i < 3 and "q" or "g", act)
  local f = score(i < 3 and "f" or "h", act)
  verdict(q and f and math.abs(q - f) <= (act == "f32" and 1e-4 or 1e-2),
    ("act %s: %s, want %s\n%s"):format(act, tostring(q), tostring(f), text))
end
os.execute(("%s/perilune pack %s/q -o %s/p.perilune"):format(build, dir, dir))
local _, plain_text = score("q", "int8")
local _, packed_text = score("p.perilune", "int8")
verdict(plain_text:find "nll" and plain_text == packed_text, "packed:\n" .. plain_text .. packed_text)
os.execute(("%s/perilune pack %s/g -o %s/g.perilune"):format(build, dir, dir))
_, plain_text = score("g", "int15")
_, packed_text = score("g.perilune", "int15")
verdict(plain_text:find "nll" and plain_text == packed_text, "packed, out of order:\n" .. plain_text .. packed_text)
local g = checkpoint.open(dir .. "/g")
verdict(g.info("model.layers.0.mlp.up_proj.weight_order").dtype == "i32", "the order of its columns is listed")
g:close()
-- eager products with a model's weights heed the order: as the plain model's
local pl = require "pl"
local function eager(which)
  local m = pl.load(dir .. "/" .. which, { act = "f32" })
  pl.act = "f32"
  local w, v, out = m:tree(), {}, {}
  for i = 1, m.d.dim do v[i] = math.sin(i) end
  for _, name in ipairs { "q", "v" } do
    for _, y in ipairs(pl.op.linear(pl.tensor { v }, w[0].attn[name]):values()) do out[#out + 1] = y end
  end
  m:close()
  return out
end
local a, b, off = eager "g", eager "h", 0
for i = 1, #a do off = math.max(off, math.abs(a[i] - b[i])) end
verdict(#a == #b and #a > 0 and off < 1e-5, ("eager products differ by %g"):format(off))
local q = checkpoint.open(dir .. "/q")
verdict(q.info("model.layers.0.mlp.up_proj.weight").dtype == "i4g32", "the weight is listed as one")
verdict(q.info("model.layers.0.mlp.up_proj.weight_scale") == nil, "its parts are not listed")
verdict(q.count == 39, "39 weights")
q:close()
os.execute("rm -rf " .. dir)
verdicts.done()
