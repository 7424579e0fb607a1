-- Blocks shared by many recipes. Each takes the tensors, the weights of the block and the dims of the model.
local pl = require "pl"
local err, arg, schema, sym = require "pl.err", require "pl.arg", require "pl.schema", require "pl.sym"
local checkpoint = require "pl.checkpoint"
local op, W = pl.op, pl.weight
local nn = {}

-- Weights that not every model of a family has; in a tree they are simply absent.
local function maybe(w, name) return rawget(w, name) end

--- SwiGLU (or GeGLU) feed-forward: down(act(gate x) * up x).
function nn.swiglu(x, w)
  return pl.sum_ranks(op.linear(op.swiglu(op.linear(x, w.gate), op.linear(x, w.up)), w.down))
end
function nn.geglu(x, w)
  return pl.sum_ranks(op.linear(op.geglu(op.linear(x, w.gate), op.linear(x, w.up)), w.down))
end

--- Grouped-query attention with rotary positions; biases and norms of q and k where the weights have them.
---   o.rope: rotary settings (default d.rope); o.window: keys that are seen (0: all)
function nn.gqa(x, w, kv, d, o)
  local freq, turn = nn.freqs(o and o.rope or d.rope)
  local q = op.linear(x, w.q, maybe(w, "q_bias")):heads(d.heads)
  local k = op.linear(x, w.k, maybe(w, "k_bias")):heads(d.kv_heads)
  local v = op.linear(x, w.v, maybe(w, "v_bias")):heads(d.kv_heads)
  if maybe(w, "q_norm") then
    q, k = op.rms_norm(q, w.q_norm, d.eps), op.rms_norm(k, w.k_norm, d.eps)
  end
  kv:append(op.rope(k, kv.pos, pl.const(freq), turn), v)
  local y = op.attend(op.rope(q, kv.pos, pl.const(freq), turn), kv, rawget(d, "scale") or d.head_dim ^ -0.5,
    o and o.window or 0)
  return pl.sum_ranks(op.linear(y:flat(), w.o))
end

--- Logits of the wanted rows, and the hidden states that they come from, of all rows: final norm, then the head.
function nn.logits(x, w, kv, d)
  local hidden = op.rms_norm(x, w.norm, d.eps)
  return op.linear(op.gather(hidden, kv.rows), w.head), hidden
end

--- Cache of grouped-query attention.
function nn.gqa_cache(d)
  return { layers = d.layers, heads = d.kv_heads, key_dim = d.head_dim, value_dim = d.head_dim, page = 64 }
end

-- Rotary frequencies ----------------------------------------------------------------------------------------

local scaling = {}
function scaling.none(f) return f, 1 end
function scaling.linear(f, r)
  for j = 1, #f do f[j] = f[j] / r.factor end
  return f, 1
end
-- Llama 3.1: slow turns are stretched, fast ones kept, those between are blended.
function scaling.llama3(f, r)
  local slow, fast = r.from / r.low, r.from / r.high -- wave lengths
  for j = 1, #f do
    local wave = 2 * math.pi / f[j]
    if wave > slow then
      f[j] = f[j] / r.factor
    elseif wave >= fast then
      local blend = (r.from / wave - r.low) / (r.high - r.low)
      f[j] = (1 - blend) * f[j] / r.factor + blend * f[j]
    end
  end
  return f, 1
end
-- Factors stored with the checkpoint, one a frequency.
function scaling.factors(f, r)
  if #r.factors ~= #f then err.raise(("rope: %d stored factors, want %d"):format(#r.factors, #f)) end
  for j = 1, #f do f[j] = f[j] / r.factors[j] end
  return f, 1
end
-- YaRN (Peng et al. 2023): a ramp between interpolated and kept frequencies; sine and cosine grow with the
-- factor.
function scaling.yarn(f, r)
  local D, theta = r.dim, r.theta
  local function turns(beta) return D * math.log(r.from / (2 * math.pi * beta)) / (2 * math.log(theta)) end
  local lo, hi = turns(r.fast or 32), turns(r.slow or 1)
  if r.truncate ~= false then lo, hi = math.floor(lo), math.ceil(hi) end
  lo, hi = math.max(lo, 0), math.min(hi, D - 1)
  if lo == hi then hi = hi + 0.001 end
  for j = 1, #f do
    local ramp = math.max(0, math.min(1, (j - 1 - lo) / (hi - lo)))
    f[j] = ramp * f[j] / r.factor + (1 - ramp) * f[j]
  end
  return f, r.turn or (r.factor > 1 and 0.1 * math.log(r.factor) + 1 or 1)
end

local positive = schema.number(1e-30, 1e30)
local function maybe_number(v) if v ~= nil then return positive(v) end end
local scaling_needs = {
  linear = schema.having { factor = positive },
  llama3 = schema.having { factor = positive, from = positive, low = positive, high = positive },
  factors = schema.having { factors = schema.list(positive) },
  yarn = schema.having { factor = positive, from = positive, fast = maybe_number, slow = maybe_number,
    turn = maybe_number },
}

local tables = setmetatable({}, { __mode = "k" })

--- freq, turn: the table of rotary frequencies theta^(-2j/dim), scaled, and the factor of sine and cosine.
---   r: { theta, dim, scaling = "none" | "linear" | "llama3" | "yarn" | "factors", ... }
function nn.freqs(r)
  local t = tables[r]
  if not t then
    local f = {}
    for j = 1, r.dim / 2 do f[j] = r.theta ^ (-2 * (j - 1) / r.dim) end
    local by = scaling[r.scaling or "none"]
    if not by then err.unknown("rope scaling", tostring(r.scaling), err.names(scaling)) end
    local bad, part = schema.wrong(r, scaling_needs[r.scaling] or "table")
    if bad then err.raise(("rope scaling '%s'%s: %s"):format(r.scaling, part, bad)) end
    t = { by(f, r) }
    tables[r] = t
  end
  return t[1], t[2]
end

--- Rotary settings as a checkpoint states them. base: the frequency base if the metadata has none; key: where
--- newer configs keep them (rope_parameters).
function nn.rope_settings(m, dim, base, key)
  local r = { dim = dim, theta = m:num("rope_theta", "rope.freq_base", base) }
  local s = m:get("rope_scaling", nil) or m:get(key or "rope_parameters", nil)
  if type(s) ~= "table" and m.format == "gguf" and m:get(nil, "rope.scaling.type") then
    s = { type = m:get(nil, "rope.scaling.type"), factor = m:get(nil, "rope.scaling.factor"),
      original_max_position_embeddings = m:get(nil, "rope.scaling.original_context_length"),
      attention_factor = m:get(nil, "rope.scaling.attn_factor"),
      beta_fast = m:get(nil, "rope.scaling.yarn_beta_fast"), beta_slow = m:get(nil,
        "rope.scaling.yarn_beta_slow") }
  end
  if type(s) == "table" then
    if s.rope_theta ~= nil then r.theta = s.rope_theta end
    local kind = s.rope_type or s.type or "default"
    if kind == "linear" then
      r.scaling, r.factor = "linear", s.factor
    elseif kind == "llama3" then
      r.scaling, r.factor, r.low, r.high = "llama3", s.factor, s.low_freq_factor, s.high_freq_factor
      r.from = s.original_max_position_embeddings
    elseif kind == "yarn" then
      r.scaling, r.factor, r.fast, r.slow, r.turn = "yarn", s.factor, s.beta_fast, s.beta_slow,
        s.attention_factor
      r.from = s.original_max_position_embeddings or m:num("max_position_embeddings", "context_length")
      r.truncate = s.truncate
    elseif kind ~= "default" and kind ~= "none" then
      err.raise(("rope scaling '%s' is not known"):format(tostring(kind)), { err.known { "default", "linear",
        "llama3", "yarn" } })
    end
    if r.scaling and type(r.factor) ~= "number" then
      err.raise(("rope scaling '%s' states no factor"):format(kind))
    end
  end
  if m:has "rope_freqs.weight" then r.scaling, r.factors = "factors", m:values "rope_freqs.weight" end
  return r
end

-- The llama family ------------------------------------------------------------------------------------------

--- Dims as the metadata of a llama-like checkpoint states them; more: fields that the recipe adds or
--- replaces.
function nn.llama_dims(m, more)
  local dim, heads = m:int("hidden_size", "embedding_length"), m:int("num_attention_heads",
    "attention.head_count")
  local d = {
    vocab = m:shape("model.embed_tokens.weight")[1], dim = dim, layers = m:int("num_hidden_layers",
      "block_count"),
    heads = heads, kv_heads = m:int("num_key_value_heads", "attention.head_count_kv", heads),
    head_dim = m:int("head_dim", "attention.key_length", dim / heads),
    ffn = m:int("intermediate_size", "feed_forward_length"),
    eps = m:num("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
    context = m:int("max_position_embeddings", "context_length", 2048), tied = m:tied(false),
  }
  d.rope = nn.rope_settings(m, m:int(nil, "rope.dimension_count", d.head_dim), 10000)
  -- Qwen configs name a window that no published model uses
  if m:get "use_sliding_window" == true and m:int("max_window_layers", nil, 28) < d.layers then
    err.raise("metadata 'use_sliding_window' is true, want false: this recipe has no windows", { m.path })
  end
  for k, v in pairs(more or {}) do d[k] = v end
  return pl.dims(d)
end

--- Attention weights of layer i. o.bias: q, k, v have biases; o.norm: q and k have norms; o.pairs: GGUF files
--- hold the rows of q and k pairwise; o.plus: added to Hugging Face norms.
function nn.attn_weights(d, p, o)
  o = o or {}
  local q, k = d.heads * d.head_dim, d.kv_heads * d.head_dim
  local a = {
    q = W("attn", p .. "q_proj.weight", { q, d.dim }, 1, o.pairs and { pairs = d.heads }),
    k = W("attn", p .. "k_proj.weight", { k, d.dim }, 1, o.pairs and { pairs = d.kv_heads }),
    v = W("attn", p .. "v_proj.weight", { k, d.dim }, 1),
    o = W("attn", p .. "o_proj.weight", { d.dim, q }, 2),
  }
  if o.bias then
    a.q_bias, a.k_bias = W("bias", p .. "q_proj.bias", { q }, 1), W("bias", p .. "k_proj.bias", { k }, 1)
    a.v_bias = W("bias", p .. "v_proj.bias", { k }, 1)
  end
  if o.norm then
    local plus = o.plus and { plus = o.plus }
    a.q_norm = W("norm", p .. "q_norm.weight", { d.head_dim }, nil, plus)
    a.k_norm = W("norm", p .. "k_norm.weight", { d.head_dim }, nil, plus)
  end
  return a
end

function nn.mlp_weights(d, p)
  return {
    gate = W("mlp", p .. "gate_proj.weight", { d.ffn, d.dim }, 1),
    up = W("mlp", p .. "up_proj.weight", { d.ffn, d.dim }, 1),
    down = W("mlp", p .. "down_proj.weight", { d.dim, d.ffn }, 2),
  }
end

--- Embedding, final norm and head; a tied head is the embedding itself.
function nn.ends(d, plus)
  local embed = W("embed", "model.embed_tokens.weight", { d.vocab, d.dim })
  return { embed = embed, head = d.tied and embed or W("head", "lm_head.weight", { d.vocab, d.dim }),
    norm = W("norm", "model.norm.weight", { d.dim }, nil, plus and { plus = plus }) }
end

--- All weights of a llama-like model; o as in nn.attn_weights.
function nn.llama_weights(o)
  return function(d)
    local w = nn.ends(d)
    for i = 0, d.layers - 1 do
      local p = ("model.layers.%d."):format(i)
      w[i] = {
        norm1 = W("norm", p .. "input_layernorm.weight", { d.dim }),
        norm2 = W("norm", p .. "post_attention_layernorm.weight", { d.dim }),
        attn = nn.attn_weights(d, p .. "self_attn.", o), mlp = nn.mlp_weights(d, p .. "mlp."),
      }
    end
    return w
  end
end

-- What the blocks take ----------------------------------------------------------------------------------------

local whole, number = schema.whole, schema.number
local function kv(v)
  local s = sym.of(v) or v
  if type(s) ~= "table" or not rawget(s, "is_kv") then return schema.show(v) .. ", want the cache" end
end
local function metadata(v)
  if not checkpoint.is(v) then return schema.show(v) .. ", want what dims(m) is given" end
end
local rotary, rotary_fields = schema.having { theta = positive, dim = whole(2) }, schema.only { theta = positive,
  dim = whole(2), scaling = "string", factor = positive, from = positive, low = positive, high = positive,
  fast = positive, slow = positive, turn = positive, truncate = "boolean", factors = schema.list(positive) }
local function rope(r)
  local bad, part = rotary(r)
  if not bad then bad, part = rotary_fields(r) end
  return bad, part
end
local parts = schema.only { bias = "boolean", norm = "boolean", pairs = "boolean", plus = number(-100, 100) }
local sizes = schema.having { dim = whole(1), heads = whole(1), kv_heads = whole(1), head_dim = whole(1) }
arg.functions("nn", nn, {
  swiglu = { "x", arg.any, "w", "table" }, geglu = { "x", arg.any, "w", "table" },
  gqa = { "x", arg.any, "w", "table", "kv", kv, "d", schema.having { heads = whole(1), kv_heads = whole(1),
    head_dim = whole(1) }, "o?", schema.only { window = whole(0), rope = rope } },
  logits = { "x", arg.any, "w", "table", "kv", kv, "d", schema.having { eps = number(0, 1) } },
  gqa_cache = { "d", schema.having { layers = whole(1), kv_heads = whole(1), head_dim = whole(1) } },
  freqs = { "r", rope },
  rope_settings = { "m", metadata, "dim", whole(1), "base", positive, "key?", "string" },
  llama_dims = { "m", metadata, "more?", "table" },
  attn_weights = { "d", sizes, "p", "string", "o?", parts },
  mlp_weights = { "d", schema.having { dim = whole(1), ffn = whole(1) }, "p", "string" },
  ends = { "d", schema.having { vocab = whole(1), dim = whole(1) }, "plus?", number(-100, 100) },
  llama_weights = { "o?", parts },
})

return nn
