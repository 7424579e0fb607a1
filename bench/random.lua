-- random.lua SHAPE FORMAT [DIRECTORY]: writes a GGUF file with random weights, for benchmarks of shapes whose
-- checkpoints are large or not free: llama-3.2-1b or llama-3-8b in q4_0, q8_0 or bf16, the output in q6_k with q4_0, as
-- quantising tools do. The same file every time. Prints its path; one that is there and whole is not written again. The
-- directory is outside the tree: by default perilune/random in the user's cache. Runs in plain LuaJIT.
--   llama-3.2-1b  q4_0 0.8 GB, q8_0 1.3 GB, bf16 2.5 GB      llama-3-8b  q4_0 4.7 GB, q8_0 8.5 GB, bf16 16.1 GB
--   tiny          for tests
local ffi = require "ffi"
local shapes = {
  ["llama-3.2-1b"] = { vocab = 128256, dim = 2048, layers = 16, heads = 32, kv_heads = 8, head_dim = 64, ffn = 8192,
    tied = true },
  ["llama-3-8b"] = { vocab = 128256, dim = 4096, layers = 32, heads = 32, kv_heads = 8, head_dim = 128, ffn = 14336 },
  tiny = { vocab = 512, dim = 256, layers = 2, heads = 4, kv_heads = 2, head_dim = 64, ffn = 512 },
}
local shape_name, format_name, directory = arg[1], arg[2], arg[3]
local s = shapes[shape_name]

local seed = 20240613
local function random() -- xorshift, 32 bits
  seed = bit.bxor(seed, bit.lshift(seed, 13))
  seed = bit.bxor(seed, bit.rshift(seed, 17))
  seed = bit.bxor(seed, bit.lshift(seed, 5))
  return seed
end
local function byte() return bit.band(bit.rshift(random(), 11), 0xff) end

-- Numbers of GGUF's formats, elements and bytes of a block, and a block of values with a deviation of about 0.02.
local formats = {
  f32 = { id = 0, n = 1, bytes = 4 },
  bf16 = { id = 30, n = 1, bytes = 2, block = function(p) -- 2^-7 to 2^-5, either sign
    p[0], p[1] = byte(), bit.bor(bit.band(byte(), 0x80), 0x3c)
  end },
  q8_0 = { id = 8, n = 32, bytes = 34, block = function(p) -- d: 2.7e-4
    p[0], p[1] = bit.band(byte(), 0x3f), 0x0c
    for i = 2, 33 do p[i] = byte() end
  end },
  q4_0 = { id = 2, n = 32, bytes = 18, block = function(p) -- d: 4.4e-3
    p[0], p[1] = bit.bor(bit.band(byte(), 0x3f), 0x80), 0x1c
    for i = 2, 17 do p[i] = byte() end
  end },
  q6_k = { id = 14, n = 256, bytes = 210, block = function(p) -- d: 1e-4, scales 8 to 15
    for i = 0, 191 do p[i] = byte() end
    for i = 192, 207 do p[i] = bit.bor(bit.band(byte(), 7), 8) end
    p[208], p[209] = bit.band(byte(), 0x3f), 0x07
  end },
}
local format = formats[format_name]
if not s or not (format and format.block) or format_name == "q6_k" then
  io.stderr:write "random.lua: want llama-3.2-1b, llama-3-8b or tiny, and q4_0, q8_0 or bf16\n"
  os.exit(2)
end

local tensors = {}
local function add(name, f, k, n) tensors[#tensors + 1] = { name = name, format = formats[f], k = k, n = n } end
local head = format_name == "q4_0" and "q6_k" or format_name
local q_dim, kv_dim = s.heads * s.head_dim, s.kv_heads * s.head_dim
add("token_embd.weight", s.tied and head or format_name, s.dim, s.vocab)
for i = 0, s.layers - 1 do
  local b = "blk." .. i .. "."
  add(b .. "attn_norm.weight", "f32", s.dim)
  add(b .. "attn_q.weight", format_name, s.dim, q_dim)
  add(b .. "attn_k.weight", format_name, s.dim, kv_dim)
  add(b .. "attn_v.weight", format_name, s.dim, kv_dim)
  add(b .. "attn_output.weight", format_name, q_dim, s.dim)
  add(b .. "ffn_norm.weight", "f32", s.dim)
  add(b .. "ffn_gate.weight", format_name, s.dim, s.ffn)
  add(b .. "ffn_up.weight", format_name, s.dim, s.ffn)
  add(b .. "ffn_down.weight", format_name, s.ffn, s.dim)
end
add("output_norm.weight", "f32", s.dim)
if not s.tied then add("output.weight", head, s.dim, s.vocab) end

-- The head of the file: little-endian, every text with its length.
local function raw(ctype, v) return ffi.string(ffi.new(ctype .. "[1]", v), ffi.sizeof(ctype)) end
local function u32(v) return raw("uint32_t", v) end
local function u64(v) return raw("uint64_t", v) end
local function text(v) return u64(#v) .. v end
local U32, F32, TEXT = 4, 6, 8
local meta = {}
local function key(name, type, v) meta[#meta + 1] = text(name) .. u32(type) .. v end
key("general.architecture", TEXT, text "llama")
key("general.name", TEXT, text(shape_name .. ", random weights"))
key("general.alignment", U32, u32(32))
key("llama.vocab_size", U32, u32(s.vocab))
key("llama.context_length", U32, u32(131072))
key("llama.embedding_length", U32, u32(s.dim))
key("llama.block_count", U32, u32(s.layers))
key("llama.feed_forward_length", U32, u32(s.ffn))
key("llama.attention.head_count", U32, u32(s.heads))
key("llama.attention.head_count_kv", U32, u32(s.kv_heads))
key("llama.attention.layer_norm_rms_epsilon", F32, raw("float", 1e-5))
key("llama.rope.dimension_count", U32, u32(s.head_dim))
key("llama.rope.freq_base", F32, raw("float", 5e5))
key("tokenizer.ggml.model", TEXT, text "no_vocab")

local parts, offset = { "GGUF", u32(3), u64(#tensors), u64(#meta), table.concat(meta) }, 0
for _, t in ipairs(tensors) do
  t.bytes = t.k / t.format.n * t.format.bytes * (t.n or 1)
  local dims = t.n and u32(2) .. u64(t.k) .. u64(t.n) or u32(1) .. u64(t.k)
  parts[#parts + 1] = text(t.name) .. dims .. u32(t.format.id) .. u64(offset)
  offset = offset + math.ceil(t.bytes / 32) * 32
end
local start = table.concat(parts)
start = start .. ("\0"):rep(-#start % 32)
local total = #start + offset

if not directory then
  directory = (os.getenv "XDG_CACHE_HOME" or os.getenv "HOME" .. "/.cache") .. "/perilune/random"
end
assert(os.execute(("mkdir -p '%s'"):format(directory)) == 0, directory)
local path = ("%s/%s-%s.gguf"):format(directory, shape_name, format_name)
local old = io.open(path, "rb")
if old then
  local size = old:seek "end"
  old:close()
  if size == total then
    print(path)
    return
  end
end

local df = io.popen(("df -Pk '%s' | tail -1"):format(directory))
local free = (tonumber(df:read "*a":match "%S+%s+%d+%s+%d+%s+(%d+)") or 0) * 1024
df:close()
if free < total + 2 ^ 30 then
  io.stderr:write(("random.lua: %.1f GB, but %s has %.1f GB left\n"):format(total / 1e9, directory, free / 1e9))
  os.exit(1)
end
io.stderr:write(("random.lua: writing %s, %.2f GB\n"):format(path, total / 1e9))

-- 8 MB of blocks of each format; tensors begin at places of it by chance and go round.
local POOL = 8 * 2 ^ 20
for _, name in ipairs { "f32", "bf16", "q8_0", "q4_0", "q6_k" } do
  local f = formats[name]
  if f.block and (f == format or f == formats[head]) then
    f.blocks = math.floor(POOL / f.bytes)
    f.pool = ffi.new("uint8_t[?]", f.blocks * f.bytes)
    for i = 0, f.blocks - 1 do f.block(f.pool + i * f.bytes) end
    f.pool_text = ffi.string(f.pool, f.blocks * f.bytes)
  end
end

local beside = path .. ".part"
local file = assert(io.open(beside, "wb"))
local function put(x) assert(file:write(x)) end
put(start)
for _, t in ipairs(tensors) do
  if t.format == formats.f32 then
    put(raw("float", 1):rep(t.k))
  else
    local at, left = bit.band(random(), 0x7fffffff) % t.format.blocks * t.format.bytes, t.bytes
    while left > 0 do
      local n = math.min(left, #t.format.pool_text - at)
      put(t.format.pool_text:sub(at + 1, at + n))
      left, at = left - n, 0
    end
  end
  put(("\0"):rep(-t.bytes % 32))
end
assert(file:close())
assert(os.rename(beside, path))
print(path)
