"""Files for make_tiny.py: number formats, safetensors, GGUF, quantised blocks and a small vocabulary.

Everything here is written from the published layouts and shares nothing with the program under test. Quantised
blocks are not made by rounding weights: codes and scales are drawn at random, and the values follow from them.
"""
import json
import struct

import numpy as np

# ---- numbers ------------------------------------------------------------------------------------------------


def bf16_bits(x):
    """Upper halves of the float32 values, rounded to nearest, ties to even."""
    u = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def bf16_value(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def store(x, dtype):
    """The bytes of x in a plain format and the values (float64) that those bytes hold."""
    if dtype == "BF16":
        bits = bf16_bits(x)
        return bits.tobytes(), bf16_value(bits).astype(np.float64)
    y = np.asarray(x).astype({"F32": np.float32, "F16": np.float16}[dtype])
    return y.tobytes(), y.astype(np.float64)


# ---- safetensors --------------------------------------------------------------------------------------------


def write_safetensors(path, tensors):
    """tensors: name -> (dtype, shape, bytes)"""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            f.write(data)


# ---- GGUF ---------------------------------------------------------------------------------------------------

GGML = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14,
        "BF16": 30}
U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9


def gguf_value(kind, v):
    if kind == STRING:
        v = v.encode()
        return struct.pack("<Q", len(v)) + v
    if isinstance(kind, tuple):  # (ARRAY, kind of the elements)
        return struct.pack("<IQ", kind[1], len(v)) + b"".join(gguf_value(kind[1], e) for e in v)
    return struct.pack({U32: "<I", I32: "<i", F32: "<f", BOOL: "<?"}[kind], v)


def write_gguf(path, metadata, tensors, alignment=32):
    """metadata: key -> (kind, value); tensors: name -> (type, shape [out, in] or [n], bytes)"""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, (kind, v) in metadata.items():
        head += gguf_value(STRING, key) + struct.pack("<I", kind[0] if isinstance(kind, tuple) else kind)
        head += gguf_value(kind, v)
    blob = b""
    for name, (dtype, shape, data) in tensors.items():
        head += gguf_value(STRING, name) + struct.pack("<I", len(shape))
        head += b"".join(struct.pack("<Q", n) for n in reversed(shape))  # the contiguous dimension comes first
        head += struct.pack("<IQ", GGML[dtype], len(blob))
        blob += data + b"\0" * (-len(data) % alignment)
    with open(path, "wb") as f:
        f.write(head + b"\0" * (-len(head) % alignment) + blob)


# ---- quantised blocks ---------------------------------------------------------------------------------------
# Fields of a block in file order: (name, bytes). d and m are halves.

FIELDS = {
    "Q4_0": [("d", 2), ("qs", 16)],
    "Q4_1": [("d", 2), ("m", 2), ("qs", 16)],
    "Q5_0": [("d", 2), ("qh", 4), ("qs", 16)],
    "Q5_1": [("d", 2), ("m", 2), ("qh", 4), ("qs", 16)],
    "Q8_0": [("d", 2), ("qs", 32)],
    "Q4_K": [("d", 2), ("m", 2), ("sc", 12), ("qs", 128)],
    "Q5_K": [("d", 2), ("m", 2), ("sc", 12), ("qh", 32), ("qs", 128)],
    "Q6_K": [("ql", 128), ("qh", 64), ("sc", 16), ("d", 2)],
}
ELEMENTS = {t: 256 if t.endswith("K") else 32 for t in FIELDS}


def half(x):
    return np.asarray(x).astype(np.float16).view(np.uint8).reshape(-1, 2)


def pack_scales(sc, mn):
    """Eight 6-bit scales and eight 6-bit minima in twelve bytes (Q4_K, Q5_K)."""
    out = np.zeros((len(sc), 12), np.uint8)
    out[:, 0:4] = sc[:, :4] | (sc[:, 4:] >> 4) << 6
    out[:, 4:8] = mn[:, :4] | (mn[:, 4:] >> 4) << 6
    out[:, 8:12] = (sc[:, 4:] & 15) | (mn[:, 4:] & 15) << 4
    return out


def draw_blocks(dtype, n, std, rng):
    """n random blocks whose values have about the given standard deviation. -> [n, bytes]"""
    codes = {"Q4": 16, "Q5": 32, "Q6": 64, "Q8": 256}[dtype[:2]]
    step = std / (codes * 0.29) * rng.uniform(0.6, 1.4, n)  # a uniform code has deviation codes / sqrt(12)
    f = {name: rng.integers(0, 256, (n, size), np.uint8) for name, size in FIELDS[dtype]}
    if dtype in ("Q4_K", "Q5_K"):
        sc = rng.integers(20, 64, (n, 8)).astype(np.uint8)
        mn = np.clip(sc.astype(int) + rng.integers(-5, 6, (n, 8)), 0, 63).astype(np.uint8)
        f["sc"] = pack_scales(sc, mn)
        f["d"], f["m"] = half(step / 40), half(step / 40 * (codes - 1) / 2)
    elif dtype == "Q6_K":
        sc = rng.integers(20, 128, (n, 16)) * rng.choice([-1, 1], (n, 16))
        f["sc"], f["d"] = sc.astype(np.int8).view(np.uint8), half(step / 75)
    elif dtype in ("Q4_1", "Q5_1"):
        f["d"], f["m"] = half(step), half(step * -(codes - 1) / 2 * rng.uniform(0.9, 1.1, n))
    else:
        f["d"] = half(step * rng.choice([-1, 1], n))
    return np.concatenate([f[name] for name, _ in FIELDS[dtype]], 1)


def halves(q):
    """Low nibbles of a run of bytes, then the high ones, along the last axis."""
    return np.concatenate([q & 15, q >> 4], -1).astype(np.int64)


def block_values(dtype, blocks):
    """[n, bytes] -> float64 [n, elements]"""
    f, at = {}, 0
    for name, size in FIELDS[dtype]:
        f[name] = np.ascontiguousarray(blocks[:, at:at + size])
        at += size
    n = len(blocks)
    d = f["d"].view(np.float16).astype(np.float64)
    m = f["m"].view(np.float16).astype(np.float64) if "m" in f else None
    if dtype == "Q8_0":
        return d * f["qs"].view(np.int8)
    if ELEMENTS[dtype] == 32:
        q = halves(f["qs"])
        if "qh" in f:
            q = q | (f["qh"].view("<u4") >> np.arange(32, dtype=np.uint32) & 1).astype(np.int64) << 4
        return d * q + m if m is not None else d * (q - {"Q4_0": 8, "Q5_0": 16}[dtype])
    if dtype == "Q6_K":
        ql, qh = f["ql"].reshape(n, 2, 64), f["qh"].reshape(n, 2, 1, 32)
        high = (qh >> np.array([0, 2, 4, 6], np.uint8).reshape(4, 1) & 3).astype(np.int64)  # [n, 2, 4, 32]
        q = halves(ql).reshape(n, 2, 4, 32) | high << 4
        return (d * np.repeat(f["sc"].view(np.int8).astype(np.float64), 16, 1)) * (q.reshape(n, 256) - 32)
    s = f["sc"].astype(np.int64)
    sc = np.concatenate([s[:, 0:4] & 63, s[:, 8:12] & 15 | s[:, 0:4] >> 6 << 4], 1)
    mn = np.concatenate([s[:, 4:8] & 63, s[:, 8:12] >> 4 | s[:, 4:8] >> 6 << 4], 1)
    q = halves(f["qs"].reshape(n, 4, 32)).reshape(n, 8, 32)
    if dtype == "Q5_K":
        q = q | (f["qh"].reshape(n, 1, 32) >> np.arange(8, dtype=np.uint8).reshape(8, 1) & 1).astype(np.int64) << 4
    return ((d * sc)[..., None] * q - (m * mn)[..., None]).reshape(n, 256)


def draw_quantised(dtype, shape, std, rng):
    """A random matrix [out, in]: its bytes and its values."""
    per_row = shape[1] // ELEMENTS[dtype]
    assert per_row * ELEMENTS[dtype] == shape[1]
    blocks = draw_blocks(dtype, shape[0] * per_row, std, rng)
    return blocks.tobytes(), block_values(dtype, blocks).reshape(shape)


# ---- vocabulary ---------------------------------------------------------------------------------------------

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = """
Ġ t|h e|i n|Ġ a|r e|o n|Ġt he|e r|Ġ s|n d|a t|Ġ w|o r|Ġ c|e s|i t|e n|a n|o u|Ġ m|i s|in g|Ġ b|e d|o f|Ġ of|
Ġ f|Ġ p|t o|Ġ to|Ġa nd|Ġ in|a r|a l|l l|Ġ d|Ġ h|o m|l e|i c|Ġ l|v e|Ġ n|u t|i on|Ġ g|a s|Ġ re|e l|Ġ he|o t|
Ġw h|r o|Ġ e|s t|c h|i l|Ġb e|l y|Ġ y|Ġy ou|a d|i g|u r|Ġ it|t h|i d|a m|Ġa n|Ġs t|Ġ u|k e|o w|e t|r a|Ġ is|
i m|Ġ on|g h|v er|e nt|c t|s e|th at
""".replace("\n", "").split("|")


def byte_letters():
    """The printable stand-ins of the 256 bytes in byte-level BPE, by byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    return [chr(b) if b in plain else chr(256 + rest.index(b)) for b in range(256)]


def vocabulary(size):
    """Tokens and merges: the special tokens, the bytes, then one token a merge."""
    merges = MERGES[:size - len(SPECIAL) - 256]
    tokens = SPECIAL + sorted(byte_letters()) + [m.replace(" ", "") for m in merges]
    assert len(tokens) == size == len(set(tokens)), (len(tokens), size)
    for m in merges:
        assert all(part in tokens for part in m.split(" ")), m
    return tokens, merges


def write_tokenizer(path, size):
    tokens, merges = vocabulary(size)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tok = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": s, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True} for i, s in enumerate(SPECIAL)],
        "normalizer": None, "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {t: i for i, t in enumerate(tokens)}, "merges": merges},
    }
    with open(path, "w", encoding="utf-8") as f:
        json.dump(tok, f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")
