-- Llama 2 and 3, SmolLM2 and their kin: a dense decoder with grouped-query attention.
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
  name = "llama",
  serves = { gguf = "llama", hf = "LlamaForCausalLM" },
  dims = nn.llama_dims,
  weights = nn.llama_weights { pairs = true },
  forward = forward,
  cache = nn.gqa_cache,
  pools = { all = pl.pool { batch = 16, tokens = 512, weights = { rest = "stored" } } },
  schedule = pl.policy.decode_first,
  -- SmolLM2-135M
  example = pl.dims { vocab = 49152, dim = 576, layers = 30, heads = 9, kv_heads = 3, head_dim = 64,
    ffn = 1536,
    eps = 1e-5, context = 8192, tied = true, rope = { dim = 64, theta = 1e5 } },
}
