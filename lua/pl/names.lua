-- Names of weights: recipes use the Hugging Face ones; this table says what GGUF files call them.
local M = {}

local whole = {
  ["model.embed_tokens.weight"] = "token_embd.weight",
  ["model.norm.weight"] = "output_norm.weight",
  ["lm_head.weight"] = "output.weight",
}
local layer = {
  input_layernorm = "attn_norm", post_attention_layernorm = "ffn_norm",
  ["self_attn.q_proj"] = "attn_q", ["self_attn.k_proj"] = "attn_k", ["self_attn.v_proj"] = "attn_v",
  ["self_attn.o_proj"] = "attn_output", ["self_attn.q_norm"] = "attn_q_norm",
    ["self_attn.k_norm"] = "attn_k_norm",
  ["mlp.gate_proj"] = "ffn_gate", ["mlp.up_proj"] = "ffn_up", ["mlp.down_proj"] = "ffn_down",
}
-- What one architecture calls differently.
local special = {
  gemma3 = { post_attention_layernorm = "post_attention_norm", pre_feedforward_layernorm = "ffn_norm",
    post_feedforward_layernorm = "post_ffw_norm" },
}

--- The GGUF name of a weight, for an architecture; names without one stay.
function M.gguf(name, arch)
  if whole[name] then return whole[name] end
  local i, part, kind = name:match "^model%.layers%.(%d+)%.(.+)%.(%a+)$"
  local to = i and (special[arch] and special[arch][part] or layer[part])
  return to and ("blk.%s.%s.%s"):format(i, to, kind) or name
end

return M
