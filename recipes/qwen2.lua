-- Qwen2 and Qwen2.5: llama with biases on q, k and v.
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
  name = "qwen2",
  serves = { gguf = "qwen2", hf = "Qwen2ForCausalLM" },
  dims = nn.llama_dims,
  weights = nn.llama_weights { bias = true },
  forward = forward,
  cache = nn.gqa_cache,
  -- keys with large biases: a bf16 cache would lose their small parts
  pools = { all = pl.pool { batch = 16, tokens = 512, kv = "f32", weights = { rest = "stored" } } },
  schedule = pl.policy.decode_first,
  -- Qwen2.5-0.5B
  example = pl.dims { vocab = 151936, dim = 896, layers = 24, heads = 14, kv_heads = 2, head_dim = 64,
    ffn = 4864,
    eps = 1e-6, context = 32768, tied = true, rope = { dim = 64, theta = 1e6 } },
}
