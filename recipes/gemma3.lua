-- Gemma 3 (text): norms before and after each branch, sliding windows on most layers.
local pl = require "pl"
local op, nn, W = pl.op, require "pl.nn", pl.weight

-- Layers that see everything: every sixth, or as the config says.
local function every(n, layers)
  local far = {}
  for i = 1, layers do far[i] = i % n == 0 end
  return far
end

local function far_layers(m, layers)
  local kinds = m:get "layer_types"
  if not kinds then
    local n = m:int("_sliding_window_pattern", nil, 6)
    return every(m:int("sliding_window_pattern", "attention.sliding_window_pattern", n), layers)
  end
  local far, known = {}, { full_attention = true, sliding_attention = false }
  for i = 1, layers do
    far[i] = known[kinds[i]]
    assert(far[i] ~= nil, "layer_types: an entry for each layer, full_attention or sliding_attention")
  end
  return far
end

local function dims(m)
  local heads = m:int("num_attention_heads", "attention.head_count")
  local dim, layers = m:int("hidden_size", "embedding_length"), m:int("num_hidden_layers", "block_count")
  local head_dim = m:int("head_dim", "attention.key_length", 256)
  -- 62 layers: the 27B
  local scalar = m:num("query_pre_attn_scalar", nil, layers == 62 and dim / heads or head_dim)
  return nn.llama_dims(m, {
    head_dim = head_dim, scale = scalar ^ -0.5, tied = m:tied(true), far = far_layers(m, layers),
    rope = nn.rope_settings(m, head_dim, 1e6, "rope_parameters.full_attention"),
    window = m:int("sliding_window", "attention.sliding_window", 512),
    near = { dim = head_dim, theta = m:num("rope_local_base_freq", "rope.freq_base_swa",
      m:num("rope_parameters.sliding_attention.rope_theta", nil, 10000)) },
  })
end

local function weights(d)
  local w = nn.ends(d, 1)
  for i = 0, d.layers - 1 do
    local p = ("model.layers.%d."):format(i)
    local function norm(name) return W("norm", p .. name .. ".weight", { d.dim }, nil, { plus = 1 }) end
    w[i] = {
      norm1 = norm "input_layernorm", post1 = norm "post_attention_layernorm",
      norm2 = norm "pre_feedforward_layernorm", post2 = norm "post_feedforward_layernorm",
      attn = nn.attn_weights(d, p .. "self_attn.", { norm = true, plus = 1 }), mlp = nn.mlp_weights(d,
        p .. "mlp."),
    }
  end
  return w
end

local function forward(ids, w, kv, d)
  local near, far = { window = d.window, rope = d.near }, { window = 0, rope = d.rope }
  local x = op.embed(w.embed, ids, d.dim ^ 0.5)
  for i in pl.each_layer(d.layers) do
    local l, sees = w[i], d.far[i + 1] and far or near
    x = x + op.rms_norm(nn.gqa(op.rms_norm(x, l.norm1, d.eps), l.attn, kv, d, sees), l.post1, d.eps)
    x = x + op.rms_norm(nn.geglu(op.rms_norm(x, l.norm2, d.eps), l.mlp), l.post2, d.eps)
  end
  return nn.logits(x, w, kv, d)
end

return pl.recipe {
  name = "gemma3",
  serves = { gguf = "gemma3", hf = { "Gemma3ForCausalLM", "Gemma3ForConditionalGeneration" } },
  dims = dims,
  weights = weights,
  forward = forward,
  cache = nn.gqa_cache,
  pools = { all = pl.pool { batch = 16, tokens = 512, weights = { rest = "stored" } } },
  schedule = pl.policy.decode_first,
  -- Gemma3-270m
  example = pl.dims { vocab = 262144, dim = 640, layers = 18, heads = 4, kv_heads = 1, head_dim = 256,
    ffn = 2048,
    eps = 1e-6, context = 32768, tied = true, scale = 1 / 16, window = 512, far = every(6, 18),
    rope = { dim = 256, theta = 1e6 }, near = { dim = 256, theta = 1e4 } },
}
