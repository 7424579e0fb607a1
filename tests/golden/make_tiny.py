#!/usr/bin/env python3
"""Tiny models with random weights and their goldens: one of each family and rope variant, two quantised GGUF files.

  make_tiny.py            writes tests/data/NAME (the model) and tests/golden/NAME/logits.jsonl
  make_tiny.py --check    writes nothing: applies plausible mistakes to the forward pass and prints how far the last
                          logits move, so that one can see what a golden would notice
  names after these choose some of the models

Needs numpy. The forward pass is written from the published formulas in float64, without a cache and without any
knowledge of the program under test. The golden format is that of the reference's goldens (id, ids, n, nll, nll_mean,
lse, top, greedy). Same seeds, same files.
"""
import json
import math
import pathlib
import sys
from dataclasses import dataclass, replace

import numpy as np

import tiny_formats as formats

TESTS = pathlib.Path(__file__).resolve().parent.parent
LENGTHS = {"one": 1, "two": 2, "nine": 9, "prime": 37, "page-and-one": 65, "long": 150}
STEPS = 48

# ---- the forward pass ---------------------------------------------------------------------------------------


@dataclass
class Model:
    vocab: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    dim: int                    # of a head
    eps: float
    rope: list                  # per layer: (frequencies [dim/2], factor of cos and sin)
    window: list                # per layer: keys seen, the token's own included; 0 = all
    scale: float                # of the scores
    pairs: str = "half"         # half: (j, j + dim/2); adjacent: (2j, 2j + 1)
    act: str = "silu"
    embed_scale: float = 1.0
    norm_offset: float = 0.0    # a stored norm weight w acts as w + offset
    # what a mistake may change (--check); None: as it should be
    mistake: str = None


def rms_norm(m, x, w):
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + m.eps) * (w + m.norm_offset)


def linear(x, w, b=None):
    y = x @ w.T
    return y if b is None else y + b


def rotate(m, x, freqs, factor):
    """x [T, heads, dim] turned by its positions 0..T-1."""
    angle = np.arange(len(x))[:, None, None] * freqs
    cos, sin = np.cos(angle) * factor, np.sin(angle) * factor
    out = np.empty_like(x)
    if m.pairs == "half":
        a, b = slice(0, m.dim // 2), slice(m.dim // 2, None)
    else:
        a, b = slice(0, None, 2), slice(1, None, 2)
    out[..., a] = x[..., a] * cos - x[..., b] * sin
    out[..., b] = x[..., b] * cos + x[..., a] * sin
    return out


def activation(m, x):
    if m.act == "silu":
        return x / (1 + np.exp(-x))
    if m.act == "gelu":
        return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


def attention(m, x, l, layer):
    n = len(x)
    q = linear(x, l["q"], l.get("q.bias")).reshape(n, m.heads, m.dim)
    k = linear(x, l["k"], l.get("k.bias")).reshape(n, m.kv_heads, m.dim)
    v = linear(x, l["v"], l.get("v.bias")).reshape(n, m.kv_heads, m.dim)
    if m.mistake == "norm after rope":
        q, k = rotate(m, q, *m.rope[layer]), rotate(m, k, *m.rope[layer])
    if "q_norm" in l:  # over each head
        q, k = rms_norm(m, q, l["q_norm"]), rms_norm(m, k, l["k_norm"])
    if m.mistake != "norm after rope":
        q, k = rotate(m, q, *m.rope[layer]), rotate(m, k, *m.rope[layer])
    group = m.heads // m.kv_heads
    t, u = np.arange(n)[:, None], np.arange(n)[None, :]
    seen = u <= t
    if m.window[layer]:
        seen &= t - u < m.window[layer]
    out = np.empty((n, m.heads, m.dim))
    for h in range(m.heads):
        g = h % m.kv_heads if m.mistake == "interleaved groups" else h // group
        s = np.where(seen, q[:, h] @ k[:, g].T * m.scale, -np.inf)
        p = np.exp(s - s.max(-1, keepdims=True))
        out[:, h] = p / p.sum(-1, keepdims=True) @ v[:, g]
    return linear(out.reshape(n, -1), l["o"])


def forward(m, w, ids):
    """Logits [T, vocab] of every position."""
    h = w["embed"][ids] * m.embed_scale
    for i, l in enumerate(w["layers"]):
        a = attention(m, rms_norm(m, h, l["norm1"]), l, i)
        h = h + (rms_norm(m, a, l["post1"]) if "post1" in l else a)
        x = rms_norm(m, h, l["norm2"])
        f = linear(activation(m, linear(x, l["gate"])) * linear(x, l["up"]), l["down"])
        h = h + (rms_norm(m, f, l["post2"]) if "post2" in l else f)
    return linear(rms_norm(m, h, w["norm"]), w.get("head", w["embed"]))


# ---- rotary frequencies -------------------------------------------------------------------------------------


def rope_plain(dim, theta):
    return theta ** (-2.0 * np.arange(dim // 2) / dim)


def rope_llama3(dim, theta, factor, low, high, original):
    """Short waves stay, waves longer than original / low slow down by the factor, those between blend."""
    f = rope_plain(dim, theta)
    turns = original * f / (2 * np.pi)
    keep = np.clip((turns - low) / (high - low), 0, 1)
    return f * keep + f / factor * (1 - keep)


def rope_yarn(dim, theta, factor, original, beta_fast=32, beta_slow=1, truncate=True):
    """-> frequencies, factor of cos and sin"""
    def corr(b):
        return dim * math.log(original / (2 * math.pi * b)) / (2 * math.log(theta))
    lo, hi = corr(beta_fast), corr(beta_slow)
    if truncate:
        lo, hi = math.floor(lo), math.ceil(hi)
    lo, hi = max(lo, 0), min(hi, dim - 1)
    ramp = np.clip((np.arange(dim // 2) - lo) / (hi - lo if hi != lo else 0.001), 0, 1)
    f = rope_plain(dim, theta)
    return f / factor * ramp + f * (1 - ramp), 0.1 * math.log(factor) + 1


# ---- weights ------------------------------------------------------------------------------------------------

HF = {"embed": "model.embed_tokens.weight", "norm": "model.norm.weight", "head": "lm_head.weight",
      "norm1": "input_layernorm.weight", "norm2": "post_attention_layernorm.weight",
      "q": "self_attn.q_proj.weight", "k": "self_attn.k_proj.weight", "v": "self_attn.v_proj.weight",
      "q.bias": "self_attn.q_proj.bias", "k.bias": "self_attn.k_proj.bias", "v.bias": "self_attn.v_proj.bias",
      "q_norm": "self_attn.q_norm.weight", "k_norm": "self_attn.k_norm.weight", "o": "self_attn.o_proj.weight",
      "gate": "mlp.gate_proj.weight", "up": "mlp.up_proj.weight", "down": "mlp.down_proj.weight"}
HF_GEMMA = dict(HF, post1="post_attention_layernorm.weight", norm2="pre_feedforward_layernorm.weight",
                post2="post_feedforward_layernorm.weight")
GGUF = {"embed": "token_embd.weight", "norm": "output_norm.weight", "head": "output.weight",
        "norm1": "attn_norm.weight", "norm2": "ffn_norm.weight", "q": "attn_q.weight", "k": "attn_k.weight",
        "v": "attn_v.weight", "q_norm": "attn_q_norm.weight", "k_norm": "attn_k_norm.weight",
        "q.bias": "attn_q.bias", "k.bias": "attn_k.bias", "v.bias": "attn_v.bias",
        "o": "attn_output.weight", "gate": "ffn_gate.weight", "up": "ffn_up.weight", "down": "ffn_down.weight"}


def shapes(m, *extra, tied):
    """Key -> (shape, deviation); keys of the layers are (layer, key). Norms and biases have one dimension.

    Deviations: scores spread by about 1.5, branches outweigh the embedding, logits spread by 2 to 3. The last norm has
    weights of both signs, or a tied head would mostly repeat the token it was given.
    """
    wide, narrow = m.heads * m.dim, m.kv_heads * m.dim
    by_in = lambda out, n, gain: ((out, n), gain / math.sqrt(n))
    s = {"embed": ((m.vocab, m.hidden), 2.5 / math.sqrt(m.hidden) if tied else 0.2), "norm": ((m.hidden,), 1.0)}
    if not tied:
        s["head"] = by_in(m.vocab, m.hidden, 2.5)
    for i in range(len(m.window)):
        layer = {"norm1": ((m.hidden,), 0.3), "q": by_in(wide, m.hidden, 1.2), "k": by_in(narrow, m.hidden, 1.2),
                 "v": by_in(narrow, m.hidden, 1.0), "o": by_in(m.hidden, wide, 2.0), "norm2": ((m.hidden,), 0.3),
                 "gate": by_in(m.ffn, m.hidden, 1.0), "up": by_in(m.ffn, m.hidden, 1.0),
                 "down": by_in(m.hidden, m.ffn, 1.5)}
        if "bias" in extra:
            layer |= {"q.bias": ((wide,), 0.5), "k.bias": ((narrow,), 0.5), "v.bias": ((narrow,), 0.3)}
        if "head norms" in extra:
            layer |= {"q_norm": ((m.dim,), 0.3), "k_norm": ((m.dim,), 0.3)}
        if "post norms" in extra:
            layer |= {"post1": ((m.hidden,), 0.3), "post2": ((m.hidden,), 0.3)}
        s |= {(i, key): v for key, v in layer.items()}
    return s


def draw(m, key, shape, deviation, rng):
    """Values of one tensor, before it is stored."""
    name = key[1] if isinstance(key, tuple) else key
    x = rng.normal(size=shape) * deviation
    if name == "norm":
        return x - m.norm_offset
    if name.endswith("_norm"):
        return x + 1.2 - m.norm_offset  # of q and k: scores spread by 1.5
    if name.startswith(("norm", "post")):
        return x + 1.0 - m.norm_offset
    return x


def place(w, key, value):
    if isinstance(key, tuple):
        w["layers"][key[0]][key[1]] = value
    else:
        w[key] = value


def file_name(names, key, prefix):
    return f"{prefix}.{key[0]}.{names[key[1]]}" if isinstance(key, tuple) else names[key]


def hf_model(m, config, dtype, *extra, seed, names=HF, shards=1, more=()):
    """A Hugging Face directory: (model, weights as stored, function that writes it)."""
    rng = np.random.default_rng(seed)
    tied = config["tie_word_embeddings"]
    w, files = {"layers": [{} for _ in m.window]}, {}
    for key, (shape, deviation) in shapes(m, *extra, tied=tied).items():
        data, value = formats.store(draw(m, key, shape, deviation, rng), dtype)
        place(w, key, value)
        files[file_name(names, key, "model.layers")] = (dtype, shape, data)
    for extra_name, value in more:
        files[extra_name] = ("F32", value.shape, formats.store(value, "F32")[0])

    def write(path):
        path.mkdir(parents=True, exist_ok=True)
        ends = {"bos_token_id": 1, "eos_token_id": [0, 2], "pad_token_id": 0}
        (path / "config.json").write_text(json.dumps(ends | config, indent=1) + "\n")
        (path / "generation_config.json").write_text(json.dumps(ends, indent=1) + "\n")
        formats.write_tokenizer(path / "tokenizer.json", m.vocab)
        if shards == 1:
            formats.write_safetensors(path / "model.safetensors", files)
            return
        order, parts = list(files), {}
        for s in range(shards):
            file = f"model-{s + 1:05d}-of-{shards:05d}.safetensors"
            chosen = order[len(order) * s // shards:len(order) * (s + 1) // shards]
            formats.write_safetensors(path / file, {n: files[n] for n in chosen})
            parts |= {n: file for n in chosen}
        index = {"metadata": {"total_size": sum(len(d) for _, _, d in files.values())}, "weight_map": parts}
        (path / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
    return m, w, write


def gguf_model(name, m, arch, types, *extra, seed, metadata=(), more=(), alignment=32):
    """A GGUF file. types: key -> list of block types, one a layer, or one type; without `head` the head is tied."""
    rng = np.random.default_rng(seed)
    w, tensors = {"layers": [{} for _ in m.window]}, {}
    for key, (shape, deviation) in shapes(m, *extra, tied="head" not in types).items():
        short = key[1] if isinstance(key, tuple) else key
        if len(shape) == 1:
            dtype = "F32"
        else:
            dtype = types[short][key[0]] if isinstance(key, tuple) else types[short]
        if dtype in formats.FIELDS:
            data, value = formats.draw_quantised(dtype, shape, deviation, rng)
        else:
            data, value = formats.store(draw(m, key, shape, deviation, rng), dtype)
        place(w, key, value)
        tensors[file_name(GGUF, key, "blk")] = (dtype, shape, data)
    for extra_name, value in more:
        tensors[extra_name] = ("F32", value.shape, formats.store(value, "F32")[0])

    def write(path):
        path.mkdir(parents=True, exist_ok=True)
        f, tokens_merges = formats, formats.vocabulary(m.vocab)
        meta = {"general.architecture": (f.STRING, arch), "general.name": (f.STRING, name),
                "general.alignment": (f.U32, alignment)}
        sizes = {"context_length": 1024, "embedding_length": m.hidden, "block_count": len(m.window),
                 "feed_forward_length": m.ffn, "attention.head_count": m.heads, "attention.head_count_kv": m.kv_heads}
        meta |= {f"{arch}.{k}": (f.U32, v) for k, v in sizes.items()}
        meta |= {f"{arch}.attention.layer_norm_rms_epsilon": (f.F32, m.eps)}
        meta |= {f"{arch}.{k}": v for k, v in dict(metadata).items()}
        t = "tokenizer.ggml."
        meta |= {t + "model": (f.STRING, "gpt2"), t + "pre": (f.STRING, "gpt-2"),
                 t + "tokens": ((f.ARRAY, f.STRING), tokens_merges[0]),
                 t + "token_type": ((f.ARRAY, f.I32), [3] * len(f.SPECIAL) + [1] * (m.vocab - len(f.SPECIAL))),
                 t + "merges": ((f.ARRAY, f.STRING), tokens_merges[1]),
                 t + "bos_token_id": (f.U32, 1), t + "eos_token_id": (f.U32, 2), t + "padding_token_id": (f.U32, 0),
                 t + "add_bos_token": (f.BOOL, False)}
        formats.write_gguf(path / "model.gguf", meta, tensors, alignment)
    return m, w, write


# ---- the models ---------------------------------------------------------------------------------------------


def tiny_qwen2():
    """Biases on q, k, v; tied. The config names a window and says not to use it, as the real ones do."""
    m = Model(vocab=301, hidden=128, ffn=72, heads=4, kv_heads=2, dim=32, eps=1e-3, scale=32 ** -0.5,
              rope=[(rope_plain(32, 1e6), 1.0)] * 2, window=[0, 0])
    config = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": m.vocab,
              "hidden_size": m.hidden, "intermediate_size": m.ffn, "num_hidden_layers": 2,
              "num_attention_heads": m.heads, "num_key_value_heads": m.kv_heads, "hidden_act": "silu",
              "max_position_embeddings": 1024,
              "rms_norm_eps": m.eps, "rope_theta": 1e6, "sliding_window": 16, "use_sliding_window": False,
              "max_window_layers": 1, "tie_word_embeddings": True, "torch_dtype": "bfloat16"}
    return hf_model(m, config, "BF16", "bias", seed=2)


def tiny_qwen3():
    """Norms over each head of q and k; heads twice as wide as the hidden state; untied; two shards."""
    m = Model(vocab=320, hidden=64, ffn=144, heads=4, kv_heads=2, dim=32, eps=2e-3, scale=32 ** -0.5,
              rope=[(rope_plain(32, 1e6), 1.0)] * 3, window=[0] * 3)
    config = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": m.vocab,
              "hidden_size": m.hidden, "intermediate_size": m.ffn, "num_hidden_layers": 3,
              "num_attention_heads": m.heads, "num_key_value_heads": m.kv_heads, "head_dim": m.dim,
              "hidden_act": "silu", "attention_bias": False,
              "max_position_embeddings": 1024, "rms_norm_eps": m.eps, "rope_theta": 1000000, "rope_scaling": None,
              "sliding_window": None, "use_sliding_window": False, "max_window_layers": 3,
              "tie_word_embeddings": False, "torch_dtype": "bfloat16"}
    return hf_model(m, config, "BF16", "head norms", seed=3, shards=2)


def tiny_gemma3():
    """Every third layer global with its own theta and a linear factor, the others see 8 keys."""
    layers, theta, local, factor = 7, 1e6, 1e4, 8.0
    kinds = ["full_attention" if i % 3 == 2 else "sliding_attention" for i in range(layers)]
    rope = {"full_attention": (rope_plain(32, theta) / factor, 1.0), "sliding_attention": (rope_plain(32, local), 1.0)}
    m = Model(vocab=320, hidden=64, ffn=80, heads=2, kv_heads=1, dim=32, eps=1e-2, scale=24 ** -0.5, act="gelu_tanh",
              embed_scale=math.sqrt(64), norm_offset=1.0, rope=[rope[k] for k in kinds],
              window=[8 if k == "sliding_attention" else 0 for k in kinds])
    config = {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "vocab_size": m.vocab,
              "hidden_size": m.hidden, "intermediate_size": m.ffn, "num_hidden_layers": layers,
              "num_attention_heads": m.heads, "num_key_value_heads": m.kv_heads, "head_dim": m.dim,
              "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 24, "rms_norm_eps": m.eps,
              "rope_theta": theta, "rope_local_base_freq": local,
              "rope_scaling": {"factor": factor, "rope_type": "linear"},
              "sliding_window": 8, "_sliding_window_pattern": 3, "layer_types": kinds, "attention_bias": False,
              "attn_logit_softcapping": None, "final_logit_softcapping": None, "max_position_embeddings": 1024,
              "tie_word_embeddings": True, "dtype": "bfloat16"}
    return hf_model(m, config, "BF16", "head norms", "post norms", seed=5, names=HF_GEMMA)


def llama_config(m, **more):
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": m.vocab,
            "hidden_size": m.hidden, "intermediate_size": m.ffn, "num_hidden_layers": len(m.window),
            "num_attention_heads": m.heads, "num_key_value_heads": m.kv_heads, "hidden_act": "silu",
            "attention_bias": False, "mlp_bias": False, "rms_norm_eps": m.eps, **more}


def tiny_llama3():
    """Llama 3.1's rope; F16; odd sizes."""
    f = rope_llama3(32, 5e5, factor=8.0, low=1.0, high=4.0, original=64)
    m = Model(vocab=301, hidden=96, ffn=200, heads=3, kv_heads=1, dim=32, eps=1e-3, scale=32 ** -0.5,
              rope=[(f, 1.0)] * 2, window=[0, 0])
    config = llama_config(m, rope_theta=500000.0, max_position_embeddings=512, head_dim=32, tie_word_embeddings=False,
                          torch_dtype="float16",
                          rope_scaling={"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                        "original_max_position_embeddings": 64, "rope_type": "llama3"})
    return hf_model(m, config, "F16", seed=7)


def tiny_llama_linear():
    """Linear rope scaling in its oldest spelling (`type`); F32; tied; no head_dim; the buffers of old checkpoints."""
    f = rope_plain(16, 1e4) / 4
    m = Model(vocab=263, hidden=64, ffn=72, heads=4, kv_heads=2, dim=16, eps=1e-3, scale=16 ** -0.5,
              rope=[(f, 1.0)] * 2, window=[0, 0])
    config = llama_config(m, rope_scaling={"type": "linear", "factor": 4.0}, max_position_embeddings=1024,
                          tie_word_embeddings=True, torch_dtype="float32")
    config["rope_theta"] = 10000.0
    buffers = [(f"model.layers.{i}.self_attn.rotary_emb.inv_freq", rope_plain(16, 1e4)) for i in range(2)]
    return hf_model(m, config, "F32", seed=11, more=buffers)


def tiny_llama_yarn():
    """YaRN as in the generic code: its factor on cos and sin; the newer spelling `rope_parameters`, theta within."""
    rope = rope_yarn(32, 1e4, factor=4.0, original=512)
    m = Model(vocab=289, hidden=64, ffn=88, heads=4, kv_heads=2, dim=32, eps=1e-3, scale=32 ** -0.5, rope=[rope] * 2,
              window=[0, 0])
    config = llama_config(m, rope_parameters={"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
                                              "original_max_position_embeddings": 512},
                          head_dim=32, max_position_embeddings=2048, tie_word_embeddings=False, dtype="bfloat16")
    return hf_model(m, config, "BF16", seed=13)


def tiny_llama_gguf():
    """Adjacent pairs, as GGUF llama files have; the frequencies of Llama 3.1 as a tensor of divisors."""
    plain, slowed = rope_plain(32, 5e5), rope_llama3(32, 5e5, factor=8.0, low=1.0, high=4.0, original=64)
    divisors = (plain / slowed).astype(np.float32)
    m = Model(vocab=301, hidden=256, ffn=256, heads=4, kv_heads=1, dim=32, eps=1e-3, scale=32 ** -0.5, pairs="adjacent",
              rope=[(plain / divisors.astype(np.float64), 1.0)] * 2, window=[0, 0])
    types = {"embed": "Q4_0", "head": "Q6_K", "q": ["Q4_K", "Q4_0"], "k": ["Q8_0", "Q5_K"], "v": ["Q6_K", "F16"],
             "o": ["Q5_0", "Q4_1"], "gate": ["Q4_K", "Q5_1"], "up": ["Q4_1", "Q4_K"], "down": ["Q5_K", "Q6_K"]}
    f = formats
    meta = {"rope.freq_base": (f.F32, 5e5), "rope.dimension_count": (f.U32, m.dim),
            "attention.key_length": (f.U32, m.dim), "attention.value_length": (f.U32, m.dim),
            "vocab_size": (f.U32, m.vocab)}
    return gguf_model("tiny-llama-gguf", m, "llama", types, seed=17, metadata=meta,
                      more=[("rope_freqs.weight", divisors)])


def tiny_qwen2_gguf():
    """Half-split rotary, biases; tensors aligned to 64; heads of 256 / 4; rows of `down` fit no K format."""
    m = Model(vocab=299, hidden=256, ffn=160, heads=4, kv_heads=1, dim=64, eps=1e-3, scale=64 ** -0.5,
              rope=[(rope_plain(64, 1e6), 1.0)] * 2, window=[0, 0])
    types = {"embed": "Q5_0", "head": "Q8_0", "q": ["Q5_K", "Q5_1"], "k": ["BF16", "Q4_0"], "v": ["Q4_1", "Q6_K"],
             "o": ["Q6_K", "Q4_K"], "gate": ["Q5_1", "Q4_0"], "up": ["Q5_0", "Q5_K"], "down": ["Q8_0", "Q5_0"]}
    meta = {"rope.freq_base": (formats.F32, 1e6)}
    return gguf_model("tiny-qwen2-gguf", m, "qwen2", types, "bias", seed=19, metadata=meta, alignment=64)


def tiny_qwen3_gguf():
    """Head norms, heads twice as wide as the hidden state, a tied head."""
    m = Model(vocab=293, hidden=64, ffn=96, heads=4, kv_heads=2, dim=32, eps=1e-3, scale=32 ** -0.5,
              rope=[(rope_plain(32, 1e6), 1.0)] * 3, window=[0] * 3)
    types = {"embed": "Q8_0", "q": ["Q8_0", "Q4_1", "Q5_1"], "k": ["Q5_0", "Q8_0", "F32"], "v": ["Q8_0", "F16", "Q5_0"],
             "o": ["Q4_0", "Q8_0", "Q5_1"], "gate": ["Q8_0", "Q5_0", "Q4_1"], "up": ["BF16", "Q8_0", "Q4_0"],
             "down": ["Q5_1", "Q4_0", "Q8_0"]}
    meta = {"rope.freq_base": (formats.F32, 1e6), "attention.key_length": (formats.U32, m.dim),
            "attention.value_length": (formats.U32, m.dim)}
    return gguf_model("tiny-qwen3-gguf", m, "qwen3", types, "head norms", seed=23, metadata=meta)


MODELS = {"tiny-qwen2": tiny_qwen2, "tiny-qwen3": tiny_qwen3, "tiny-gemma3": tiny_gemma3, "tiny-llama3": tiny_llama3,
          "tiny-llama-linear": tiny_llama_linear, "tiny-llama-yarn": tiny_llama_yarn,
          "tiny-llama-gguf": tiny_llama_gguf, "tiny-qwen2-gguf": tiny_qwen2_gguf,
          "tiny-qwen3-gguf": tiny_qwen3_gguf}

# ---- goldens ------------------------------------------------------------------------------------------------


def prompts(m):
    rng = np.random.default_rng(m.vocab * 1000 + m.hidden)
    return {name: rng.integers(3, m.vocab, n).tolist() for name, n in LENGTHS.items()}


def log_sum_exp(x):
    top = x.max(-1)
    return top + np.log(np.exp(x - top[..., None]).sum(-1))


def golden(m, w, name, ids):
    logits = forward(m, w, ids)
    last, n = logits[-1], len(ids)
    nll = (log_sum_exp(logits[:-1]) - logits[np.arange(n - 1), ids[1:]]) if n > 1 else np.zeros(0)
    order = np.argsort(-last, kind="stable")[:20]
    out, margin, more = [], [], list(ids)
    for _ in range(STEPS):
        second, first = np.sort(last)[-2:]
        out.append(int(last.argmax()))
        margin.append(float(f"{first - second:.4g}"))
        more.append(out[-1])
        last = forward(m, w, more)[-1]
    return {"id": name, "kind": "ids", "ids": ids, "n": n, "nll_mean": float(nll.mean()) if n > 1 else None,
            "nll": [round(float(x), 4) for x in nll], "lse": float(log_sum_exp(logits[-1])),
            "top": [[int(i), float(f"{logits[-1][i]:.7g}")] for i in order], "greedy": {"ids": out, "margin": margin}}


def make(name):
    m, w, write = MODELS[name]()
    write(TESTS / "data" / name)
    rows = [golden(m, w, p, ids) for p, ids in prompts(m).items()]
    path = TESTS / "golden" / name
    path.mkdir(parents=True, exist_ok=True)
    (path / "logits.jsonl").write_text("".join(json.dumps(r, separators=(",", ":")) + "\n" for r in rows))
    spread = [np.std(forward(m, w, ids)[-1]) for ids in prompts(m).values()]
    margins = np.array([x for r in rows for x in r["greedy"]["margin"]])
    size = sum(f.stat().st_size for f in (TESTS / "data" / name).iterdir())
    print(f"{name}: {size} bytes, logits spread {min(spread):.2f} to {max(spread):.2f}, "
          f"nll {np.mean([r['nll_mean'] for r in rows[1:]]):.2f}, margins below 0.05: {np.mean(margins < 0.05):.0%}")


# ---- mistakes -----------------------------------------------------------------------------------------------


def without(w, *keys):
    return dict(w, layers=[{k: v for k, v in l.items() if k not in keys} for l in w["layers"]])


def mistakes(name, m, w):
    """Name -> (model, weights) of forward passes that a reader of the formulas could have written."""
    yes = {"eps 1e-5": (replace(m, eps=1e-5), w), "eps 1e-6": (replace(m, eps=1e-6), w),
           "other rotary pairs": (replace(m, pairs="adjacent" if m.pairs == "half" else "half"), w),
           "interleaved groups": (replace(m, mistake="interleaved groups"), w) if m.kv_heads > 1 else None,
           "scale by 5% more": (replace(m, scale=m.scale * 1.05), w),
           "gelu for silu": (replace(m, act="gelu_tanh"), w) if m.act == "silu" else (replace(m, act="silu"), w),
           "no rotary scaling": (replace(m, rope=[(rope_plain(m.dim, 1e4), 1.0)] * len(m.rope)), w)}
    if "q.bias" in w["layers"][0]:
        yes |= {f"no {b}": (m, without(w, b)) for b in ("q.bias", "k.bias", "v.bias")}
        yes["window obeyed"] = (replace(m, window=[16] * 2), w)
        yes["window in layer 1"] = (replace(m, window=[0, 16]), w)
    if "q_norm" in w["layers"][0]:
        yes["no q_norm, k_norm"] = (m, without(w, "q_norm", "k_norm"))
        yes["head norms after rope"] = (replace(m, mistake="norm after rope"), w)
    if name == "tiny-gemma3":
        full, near = m.rope[2], m.rope[0]
        yes |= {"window + 1": (replace(m, window=[x and x + 1 for x in m.window]), w),
                "window - 1": (replace(m, window=[x and x - 1 for x in m.window]), w),
                "no window": (replace(m, window=[0] * 7), w),
                "pattern 6": (replace(m, window=[8 if i % 6 < 5 else 0 for i in range(7)],
                                      rope=[near if i % 6 < 5 else full for i in range(7)]), w),
                "global first": (replace(m, window=[0 if i % 3 == 0 else 8 for i in range(7)],
                                         rope=[full if i % 3 == 0 else near for i in range(7)]), w),
                "one theta": (replace(m, rope=[full] * 7), w), "local theta": (replace(m, rope=[near] * 7), w),
                "no linear factor": (replace(m, rope=[(f * 8, 1) if f is full[0] else (f, 1) for f, _ in m.rope]), w),
                "factor on all": (replace(m, rope=[(f / 8, 1) if f is near[0] else (f, 1) for f, _ in m.rope]), w),
                "norms without + 1": (replace(m, norm_offset=0.0), w),
                "no post norms": (m, without(w, "post1", "post2")),
                "no post1": (m, without(w, "post1")), "scale by head_dim": (replace(m, scale=32 ** -0.5), w),
                "exact gelu": (replace(m, act="gelu"), w), "no embedding scale": (replace(m, embed_scale=1.0), w)}
    if name in ("tiny-llama3", "tiny-llama-gguf"):
        plain = rope_plain(32, 5e5)
        yes |= {"plain theta": (replace(m, rope=[(plain, 1.0)] * 2), w),
                "linear": (replace(m, rope=[(plain / 8, 1.0)] * 2), w),
                "no blend": (replace(m, rope=[(np.where(plain * 64 / (2 * np.pi) < 1, plain / 8, plain), 1.0)] * 2), w)}
    if name == "tiny-llama-yarn":
        f, factor = m.rope[0]
        yes |= {"no attention factor": (replace(m, rope=[(f, 1.0)] * 2), w),
                "attention factor once": (replace(m, rope=[(f, math.sqrt(factor))] * 2), w),
                "lo, hi not rounded": (replace(m, rope=[rope_yarn(32, 1e4, 4.0, 512, truncate=False)] * 2), w),
                "factor only": (replace(m, rope=[(rope_plain(32, 1e4), factor)] * 2), w)}
    return {k: v for k, v in yes.items() if v}


def check(name):
    m, w, _ = MODELS[name]()
    right = {p: forward(m, w, ids)[-1] for p, ids in prompts(m).items()}
    if m.pairs == "adjacent":  # rows of each head put in half-split order: the same logits
        def split(x, heads):
            return x.reshape(heads, m.dim // 2, 2, -1).swapaxes(1, 2).reshape(x.shape)
        undone = dict(w, layers=[dict(l, q=split(l["q"], m.heads), k=split(l["k"], m.kv_heads)) for l in w["layers"]])
        ids = prompts(m)["long"]
        assert np.abs(forward(replace(m, pairs="half"), undone, ids)[-1] - right["long"]).max() < 1e-9
    print(name)
    for what, (bad_m, bad_w) in mistakes(name, m, w).items():
        moved = {p: np.abs(forward(bad_m, bad_w, ids)[-1] - right[p]).max() for p, ids in prompts(m).items()}
        print(f"  {what:24s}" + "  ".join(f"{p} {d:.4f}" for p, d in moved.items()))


if __name__ == "__main__":
    names = [a for a in sys.argv[1:] if a != "--check"] or list(MODELS)
    for n in names:
        (check if "--check" in sys.argv else make)(n)
