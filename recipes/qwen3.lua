-- Qwen3 (dense): no biases, a norm over each head of q and k before the rotary positions.
local pl = require "pl"
local op, nn = pl.op, require "pl.nn"

local function forward(ids, w, kv, d)
  local x = op.embed(w.embed, ids)
  for i in pl.each_layer(d.layers) do
    local l = w[i]
    x = x + nn.gqa(op.rms_norm(x, l.norm1, d.eps), l.attn, kv, d)
    x = x + nn.swiglu(op.rms_norm(x, l.norm2, d.eps), l.mlp)
  end
  return nn.logits(x, w, kv, d)
end

return pl.recipe {
  name = "qwen3",
  serves = { gguf = "qwen3", hf = "Qwen3ForCausalLM" },
  dims = nn.llama_dims,
  weights = nn.llama_weights { norm = true },
  forward = forward,
  cache = nn.gqa_cache,
  pools = { all = pl.pool { batch = 16, tokens = 512, weights = { rest = "stored" } } },
  schedule = pl.policy.decode_first,
  -- Qwen3-0.6B
  example = pl.dims { vocab = 151936, dim = 1024, layers = 28, heads = 16, kv_heads = 8, head_dim = 128,
    ffn = 3072,
    eps = 1e-6, context = 40960, tied = true, rope = { dim = 128, theta = 1e6 } },
}
