-- Every recipe that comes with perilune traces with its example dims, and with dims read from metadata;
-- frequencies of rotary scaling against values worked out by hand; what sharding marks have to catch.
local recipe, checkpoint, nn = require "pl.recipe", require "pl.checkpoint", require "pl.nn"
local texts = require "pl.recipes.text"

local verdicts = dofile "tests/verdicts.lua"
local verdict = verdicts.ok

-- ops a layer, and around the layers
local ops = { llama = { 16, 4 }, qwen2 = { 16, 4 }, qwen3 = { 18, 4 }, gemma3 = { 20, 4 } }
local names = {}
for name in pairs(texts) do names[#names + 1] = name end
table.sort(names)
for _, name in ipairs(names) do
  local r = recipe.load(name)
  local m = recipe.fit(r)
  local ok, tr = pcall(recipe.trace, m)
  verdict(ok, name .. ": " .. tostring(tr))
  if ok then
    local n = ops[name]
    verdict(not n or #tr.ops == n[1] * m.dims.layers + n[2], ("%s: %d ops"):format(name, #tr.ops))
    verdict(#tr.used == #m.weight_list, name .. ": weights that forward does not use")
    verdict(tr.vocab == m.dims.vocab, name .. ": vocabulary")
    local layers = {}
    for _, o in ipairs(tr.ops) do
      if o.op.name == "attend" then layers[#layers + 1] = o.attrs[3].value end
    end
    local windows = table.concat(layers, " ")
    if name == "gemma3" then
      verdict(windows == ("512 512 512 512 512 0 "):rep(3):sub(1, -2), "gemma3 windows: " .. windows)
    else
      verdict(not windows:find "[1-9]", name .. " windows: " .. windows)
    end
  end
end

-- dims from metadata, GGUF and Hugging Face spellings
local embed = { ["token_embd.weight"] = { dtype = "q8_0", shape = { 1000, 64 } } }
local g = checkpoint.in_memory { format = "gguf", arch = "llama", tensors = embed, config = {
  ["llama.embedding_length"] = 64, ["llama.block_count"] = 2, ["llama.attention.head_count"] = 4,
    ["llama.attention.head_count_kv"] = 2,
  ["llama.feed_forward_length"] = 96, ["llama.attention.layer_norm_rms_epsilon"] = 1e-5,
    ["llama.rope.freq_base"] = 5e5, ["llama.context_length"] = 256 } }
local d = recipe.fit(recipe.load "llama", g).dims
verdict(d.vocab == 1000 and d.head_dim == 16 and d.kv_heads == 2 and d.rope.theta == 5e5 and d.tied
  and d.context == 256, "dims of a GGUF file")
local hf_tensors = { ["model.embed_tokens.weight"] = { dtype = "bf16", shape = { 1000, 64 } },
  ["lm_head.weight"] = { dtype = "bf16", shape = { 1000, 64 } } }
local config = { hidden_size = 64, num_hidden_layers = 2, num_attention_heads = 4, num_key_value_heads = 2,
  intermediate_size = 96,
  rms_norm_eps = 1e-6, rope_theta = 1e4, head_dim = 32, max_position_embeddings = 4096,
  rope_scaling = { rope_type = "llama3", factor = 8, low_freq_factor = 1, high_freq_factor = 4,
    original_max_position_embeddings = 1024 } }
local h = checkpoint.in_memory { format = "hf", arch = "LlamaForCausalLM", tensors = hf_tensors, config = config }
d = recipe.fit(recipe.load "llama", h).dims
verdict(d.head_dim == 32 and d.rope.scaling == "llama3" and not d.tied, "dims of a Hugging Face directory")
verdict(recipe.find(h).name == "llama" and recipe.find(g).name == "llama",
  "the recipe that serves a checkpoint")
local ok, e = pcall(recipe.find, checkpoint.in_memory { format = "hf", arch = "NoSuchLM", tensors = {} })
verdict(not ok and tostring(e):find "no recipe serves 'NoSuchLM'", "no recipe: " .. tostring(e))
config.use_sliding_window, config.max_window_layers = true, 2
verdict(pcall(recipe.fit, recipe.load "qwen2", h), "qwen2: a window on no layer")
config.max_window_layers = 1
ok, e = pcall(recipe.fit, recipe.load "qwen2", h)
verdict(not ok and tostring(e):find "this recipe has no windows", "qwen2: windows: " .. tostring(e))
config.use_sliding_window = nil

-- Gemma: which layers are global, in three spellings; rotary settings by kind of layer
local gemma = { hidden_size = 64, num_hidden_layers = 3, num_attention_heads = 2, num_key_value_heads = 1,
  intermediate_size = 96, rms_norm_eps = 1e-6, head_dim = 32, query_pre_attn_scalar = 24 }
local function gemma_dims(more)
  local all = {}
  for _, t in ipairs { gemma, more } do for k, v in pairs(t) do all[k] = v end end
  local c = checkpoint.in_memory { format = "hf", arch = "Gemma3ForCausalLM", tensors = hf_tensors, config = all }
  return recipe.fit(recipe.load "gemma3", c).dims
end
local function far(d0)
  return ("%s %s %s"):format(tostring(d0.far[1]), tostring(d0.far[2]), tostring(d0.far[3]))
end
verdict(far(gemma_dims {}) == "false false false", "gemma: every sixth layer")
verdict(far(gemma_dims { sliding_window_pattern = 3 }) == "false false true", "gemma: sliding_window_pattern")
verdict(far(gemma_dims { _sliding_window_pattern = 2 }) == "false true false",
  "gemma: _sliding_window_pattern")
d = gemma_dims { layer_types = { "full_attention", "sliding_attention", "full_attention" },
  _sliding_window_pattern = 2,
  ["rope_parameters.full_attention"] = { rope_type = "linear", factor = 8, rope_theta = 2e6 },
  ["rope_parameters.sliding_attention.rope_theta"] = 2e4 }
verdict(far(d) == "true false true", "gemma: layer_types")
verdict(d.rope.theta == 2e6 and d.rope.scaling == "linear" and d.rope.factor == 8 and d.near.theta == 2e4,
  "gemma: rope_parameters by layer type")
ok, e = pcall(gemma_dims, { layer_types = { "full_attention", "sliding_attention" } })
verdict(not ok and tostring(e):find "an entry for each layer", "gemma: short layer_types: " .. tostring(e))

config.num_hidden_layers = nil
ok, e = pcall(recipe.fit, recipe.load "llama", h)
verdict(not ok and tostring(e):find "metadata has no 'num_hidden_layers'", "missing key: " .. tostring(e))
config.num_hidden_layers = 2
config.rope_scaling = { rope_type = "longrope", factor = 8 }
ok, e = pcall(recipe.fit, recipe.load "llama", h)
verdict(not ok and tostring(e):find "'longrope' is not known", "unknown scaling: " .. tostring(e))

-- rotary frequencies
local function near(a, b) return math.abs(a - b) <= 1e-12 * math.abs(b) end
local f = nn.freqs { theta = 1e4, dim = 8 }
verdict(#f == 4 and near(f[1], 1) and near(f[3], 0.01), "plain frequencies")
f = nn.freqs { theta = 1e4, dim = 8, scaling = "linear", factor = 4 }
verdict(near(f[1], 0.25) and near(f[4], 0.001 / 4), "linear scaling")
f = nn.freqs { theta = 1e4, dim = 8, scaling = "llama3", factor = 8, low = 1, high = 4, from = 1024 }
-- wave lengths 6.28, 62.8, 628, 6283: kept below 256, stretched above 1024, blended between
local blend = (1024 / (2 * math.pi / 0.01) - 1) / 3
verdict(near(f[1], 1) and near(f[2], 0.1) and near(f[3], (1 - blend) * 0.01 / 8 + blend * 0.01)
  and near(f[4], 0.001 / 8), "llama3 scaling")
local y, turn = nn.freqs { theta = 1e4, dim = 8, scaling = "yarn", factor = 8, from = 128 }
-- corr(32) < 0 -> 0; corr(1) = 8 ln(128/2pi) / (2 ln 1e4) = 1.309 -> 2; ramp 0, 1/2, 1, 1
verdict(near(y[1], 1) and near(y[2], 0.5 * 0.1 / 8 + 0.5 * 0.1) and near(y[3], 0.01 / 8) and near(turn,
  0.1 * math.log(8) + 1), "YaRN")
f = nn.freqs { theta = 1e4, dim = 4, scaling = "factors", factors = { 1, 4 } }
verdict(near(f[2], 0.01 / 4), "stored factors")

-- what a recipe's pool says holds, where nobody says otherwise: in Lua, for `run`, for `serve`
do
  local files, perilune = dofile "tests/files.lua", (os.getenv "PL_BUILD" or "build") .. "/perilune"
  local path = os.tmpname()
  local file = assert(io.open(path .. ".lua", "w"))
  file:write((files.read "recipes/llama.lua":gsub("batch = 16, tokens = 512",
    "batch = 3, tokens = 40, chunk = 20, queue = 2, context = 100, fronts = 0, threads = 3")))
  file:close()
  local m = require("pl.model").load("tests/data/tiny-llama", { recipe = path .. ".lua" })
  local o = { m.pool.batch, m.pool.tokens, m.pool.chunk, m.pool.queue, m.context, m.pool.fronts, m.dev:threads() }
  local said = table.concat(o, " ")
  verdict(said == "3 40 20 2 100 0 3", "the pool: " .. said)
  m:close()
  local function threads(more)
    local p = io.popen(("%s run %s.lua --weights tests/data/tiny-llama --ids 1 --max-tokens 1 --json %s"):format(
      perilune, path, more))
    local text = p:read "*a"
    p:close()
    return text:match '"threads":%s*(%d+)' or text
  end
  verdict(threads "" == "3" and threads "--threads 2" == "2", "threads of run")
  local client = dofile "tests/http_client.lua"
  local s = client.serve(path .. ".lua --weights tests/data/tiny-llama --socket none --no-log")
  local line = "3 threads, act bf16: load [%d.]+ s; 3 requests a step, 100 tokens each"
  verdict(client.becomes(true, function() return s.log():find(line) ~= nil end), "serve: " .. s.log())
  s.signal(15)
  verdict(s.wait() == 0, "serve ends")
  os.remove(path .. ".lua")
  os.remove(path)
end

-- threads of a large model are measured where nobody says how many
do
  local model, dev = require "pl.model", require "pl.dev"
  local function fitted(o)
    local m = model.load("tests/data/tiny-llama", o)
    local list, line, device = m.dev.fitted, m.dev:describe(), m.dev
    m:close()
    device:close()
    return list, line
  end
  verdict(not fitted { context = 64, path = "portable" }, "a small one: all cores")
  local large = model.LARGE
  model.LARGE = 1
  verdict(not fitted { context = 64, threads = 2 }, "as many as were asked for")
  local list, line = fitted { context = 64, path = "portable" }
  local all = dev.open {}:threads()
  verdict(list and list[1].threads == all and list[1].gb_s > 0 and (all < 8) == (list[2] == nil), "measured")
  verdict(line:find("GB/s read: [%d.]+ with " .. all), line)
  model.LARGE = large
end

verdicts.done()
