-- kv.lua MODEL TEXT [TOKENS]: what an FP8 cache costs in quality, and what it saves: per format and kind of scale,
-- bytes a token, tokens in 1 GB, and, against a BF16 cache on the same text, the mean KL divergence of the next-token
-- distributions, the places where the likeliest token is another one (per 1,000), and the mean nll. Scales are
-- calibrated on the first half of the text, figures are of the second. Run by pl-lua; appends rows to
-- bench/results/kv.csv.
local ffi = require "ffi"
local model, cache, json = require "pl.model", require "pl.cache", require "pl.json"
local path, text_path, wanted = arg[1], arg[2], tonumber(arg[3] or 1000)
local scales_path = os.tmpname()

local f = assert(io.open(text_path, "rb"))
local text = f:read(2 ^ 20)
f:close()

local function slice(list, from, n)
  local out = {}
  for i = from, math.min(from + n - 1, #list) do out[#out + 1] = list[i] end
  return out
end

local m = model.load(path, { act = "f32", kv = "f32", context = 2048, batch = 1 })
local ids = m:ids(text)
local scales = m:calibrate(slice(ids, 1, wanted))
m:close()
f = assert(io.open(scales_path, "wb"))
f:write(json.encode(scales))
f:close()
local sample = slice(ids, wanted + 1, wanted)
assert(#sample > 100, "the text is too short")

-- log-probabilities of all rows, as a float array
local function rows(o)
  o.context, o.batch = wanted, 16
  local x = model.load(path, o)
  local y = x:logits(sample, #sample)
  local V = x.trace.vocab
  local p = ffi.new("float[?]", #sample * V)
  ffi.copy(p, y.data, #sample * V * 4)
  local _, figures = cache.options(x.fitted.cache, { kv = o.kv, kv_scale = o.kv_scale, cache_bytes = 1e9 }, 1)
  y:close()
  x:close()
  for t = 0, #sample - 1 do
    local top, sum = -math.huge, 0
    for i = 0, V - 1 do top = math.max(top, p[t * V + i]) end
    for i = 0, V - 1 do sum = sum + math.exp(p[t * V + i] - top) end
    local lse = top + math.log(sum)
    for i = 0, V - 1 do p[t * V + i] = p[t * V + i] - lse end
  end
  return p, V, figures
end

local function best(p, from, V)
  local at = 0
  for i = 1, V - 1 do if p[from + i] > p[from + at] then at = i end end
  return at
end

local function compare(a, b, V)
  local kl, flips, nll = 0, 0, 0
  for t = 0, #sample - 1 do
    for i = t * V, t * V + V - 1 do kl = kl + math.exp(a[i]) * (a[i] - b[i]) end
    if best(a, t * V, V) ~= best(b, t * V, V) then flips = flips + 1 end
    if sample[t + 2] then nll = nll - b[t * V + sample[t + 2]] end
  end
  return kl / #sample, flips / #sample * 1000, nll / (#sample - 1)
end

local commit = dofile "bench/util.lua".commit()
local csv_path = "bench/results/kv.csv"
local old = io.open(csv_path)
if old then old:close() end
local csv = assert(io.open(csv_path, "a"))
if not old then
  csv:write "date,commit,model,text,tokens,format,scale,bytes_per_token,tokens_per_gb,kl,flips_per_1000,nll\n"
end
local base, V
local name = path:match "[^/]+$"
print(("%s, %d tokens of %s"):format(name, #sample, text_path:match "[^/]+$"))
local row = "%-6s %-7s %12s %12s %10s %14s %8s"
print(row:format("format", "scale", "bytes/token", "tokens/GB", "KL", "flips/1000", "nll"))
for _, o in ipairs { { kv = "bf16" }, { kv = "f32" }, { kv = "fp8", kv_scale = "tensor", kv_scales = scales_path },
  { kv = "fp8", kv_scale = "head", kv_scales = scales_path }, { kv = "fp8", kv_scale = "token" } } do
  local p, v, c = rows(o)
  base, V = base or p, v
  local kl, flips, nll = compare(base, p, V)
  print(row:format(o.kv, o.kv_scale or "-", c.bytes_per_token, c.tokens, ("%.6f"):format(kl), ("%.1f"):format(flips),
    ("%.4f"):format(nll)))
  csv:write(("%s,%s,%s,%s,%d,%s,%s,%d,%d,%.7f,%.2f,%.5f\n"):format(os.date "%Y-%m-%d", commit, name,
    text_path:match "[^/]+$", #sample, o.kv, o.kv_scale or "", c.bytes_per_token, c.tokens, kl, flips, nll))
  csv:flush()
end
csv:close()
os.remove(scales_path)
os.exit(0)
