"""Quantised weights and what reference decoders make of them.

    make_formats.py                   writes ../data/quantised/NAME/{config.json,model.safetensors} and formats.txt
    make_formats.py MODEL_DIR NAME    prints the lines of an existing checkpoint (for those in ../shared/models)

A line of formats.txt: directory, tensor, format in perilune, sizes, FNV-1a (64 bits) of its float32 values. Values come from
compressed-tensors (all of its formats, AWQ's unpacking, blocks of FP8) and gguf (blocks.txt); of modelopt's NVFP4, GPTQ and
gpt-oss's MXFP4 from their formulas, written out below. Scales are widened to float32 first: in BF16, as the packages compute
by default, the product of a scale and a code would be rounded once more.

Made with torch 2.15.0, compressed-tensors 0.20.1, safetensors 0.8.0, gguf 0.19.0.
"""
import json
import os
import sys

import numpy as np
import torch
from compressed_tensors.compressors.mx_utils import decompress_mx_scale
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32, unpack_from_int32
from compressed_tensors.entrypoints.convert.converters.autoawq import AutoAWQConverter
from compressed_tensors.entrypoints.convert.converters.fp8block_dequantizer import FP8BlockDequantizer
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import dequantize
from safetensors import safe_open
from safetensors.torch import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
F32 = torch.float32


def digest(values):
    h = np.uint64(0xCBF29CE484222325)
    data = np.frombuffer(values.contiguous().numpy().astype("<f4").tobytes(), np.uint8)
    prime = np.uint64(0x100000001B3)
    with np.errstate(over="ignore"):
        for b in data.tolist():
            h = (h ^ np.uint64(b)) * prime
    return int(h)


def line(where, name, fmt, values):
    return "%s %s %s %s %016x" % (where, name, fmt, "x".join(map(str, values.shape)), digest(values))


def own_group(*sizes):
    g = np.gcd.reduce([s for s in sizes if s])
    return next((n for n in (128, 64, 32) if g % n == 0), 0)


# ---- decoders: {tensor: value} and the config to {weight: (format, values)} --------------------------------------


def args_of(w):
    return QuantizationArgs(**{k: w[k] for k in ("num_bits", "type", "symmetric", "strategy", "group_size", "block_structure")
                               if w.get(k) is not None})


def compressed(t, module, w):
    get = lambda s: t.get(module + "." + s)
    args, scale = args_of(w), get("weight_scale")
    if get("weight") is not None:
        codes = get("weight").to(F32)
        n, k = codes.shape
        if w["strategy"] == "block":
            values = FP8BlockDequantizer(targets=["Linear"], weight_block_size=w["block_structure"],
                                         dtype=F32)._create_dequantized_weight(get("weight"), scale)
            g = own_group(k, w["block_structure"][1] if w["block_structure"][1] < k else k)
        else:
            values, g = dequantize(codes, scale.to(F32), args=args, dtype=F32), own_group(k)
        return "f8g%d" % g if g else "f32", values
    packed = get("weight_packed")
    if w["type"] == "float":
        codes = unpack_fp4_from_uint8(packed, packed.shape[0], packed.shape[1] * 2, F32)
        if w["group_size"] == 16:
            return "nvfp4", dequantize(codes, scale.to(F32), args=args, dtype=F32, global_scale=get("weight_global_scale"))
        return "mxfp4", dequantize(codes, decompress_mx_scale(scale).to(F32), args=args, dtype=F32)
    shape = get("weight_shape").tolist()
    codes, zero = unpack_from_int32(packed, 4, shape), get("weight_zero_point")
    if zero is not None:
        zero = unpack_from_int32(zero, 4, (shape[0], scale.shape[1]), packed_dim=0)
    share = w.get("group_size") or shape[1]
    kind = "i4g" if zero is None and scale.dtype == torch.bfloat16 else "u4g"
    return kind + str(own_group(share)), dequantize(codes, scale.to(F32), zero_point=zero, args=args, dtype=F32)


def gptq(t, module, v2):
    q, z, s = (t[module + "." + k] for k in ("qweight", "qzeros", "scales"))
    shifts = 4 * torch.arange(8)
    codes = (q[:, None, :] >> shifts[None, :, None] & 15).reshape(-1, q.shape[1])
    zeros = (z[:, :, None] >> shifts & 15).reshape(z.shape[0], -1) + (0 if v2 else 1)
    g = codes.shape[0] // s.shape[0]
    rows = lambda x: x.repeat_interleave(g, 0)
    values = (codes - rows(zeros)).to(F32) * rows(s).to(F32)
    return "u4g%d" % own_group(g), values.T


def awq(t, module):
    q, z, s = (t[module + "." + k] for k in ("qweight", "qzeros", "scales"))
    codes, zeros = AutoAWQConverter.reverse_awq_order(*AutoAWQConverter.unpack_awq(q, z, 4), 4)
    codes, zeros = codes.to(torch.int32) & 15, zeros.to(torch.int32) & 15
    g = codes.shape[0] // s.shape[0]
    rows = lambda x: x.repeat_interleave(g, 0)
    return "u4g%d" % own_group(g), ((codes - rows(zeros)).to(F32) * rows(s).to(F32)).T


def modelopt(t, module):
    w, s = t[module + ".weight"], t[module + ".weight_scale"]
    if w.dtype != torch.uint8:
        return "f8g%d" % own_group(w.shape[1]), w.to(F32) * s.to(F32)
    codes = unpack_fp4_from_uint8(w, w.shape[0], w.shape[1] * 2, F32)
    return "nvfp4", codes * (s.to(F32) * t[module + ".weight_scale_2"]).repeat_interleave(16, 1)


def gpt_oss(t, name):
    b, e = t[name + "_blocks"], t[name + "_scales"]
    codes = unpack_fp4_from_uint8(b.reshape(-1, 16), b.numel() // 16, 32, F32)
    return "mxfp4", torch.ldexp(codes, e.reshape(-1, 1).to(torch.int32) - 127).reshape(*b.shape[:-2], -1)


def decode(tensors, config):
    q = config.get("quantization_config") or config.get("text_config", {}).get("quantization_config")
    out = {}
    for name in sorted(tensors):
        module, _, part = name.rpartition(".")
        by = q["quant_method"]
        if by == "compressed-tensors" and module + ".weight_scale" in tensors and part in ("weight", "weight_packed"):
            out[module + ".weight"] = compressed(tensors, module, q["config_groups"]["group_0"]["weights"])
        elif by == "fp8" and part == "weight_scale_inv":
            block = q["weight_block_size"]
            out[module + ".weight"] = compressed(
                {module + ".weight": tensors[module + ".weight"], module + ".weight_scale": tensors[name]}, module,
                {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "block", "block_structure": block})
        elif by == "gptq" and part == "qweight":
            z = tensors[module + ".qzeros"]
            same = {-0x77777778: True, 0x77777777: False}.get(int(z[0, 0])) if (z == z[0, 0]).all() else None
            out[module + ".weight"] = gptq(tensors, module, q.get("checkpoint_format") == "gptq_v2" if same is None else same)
        elif by == "awq" and part == "qweight":
            out[module + ".weight"] = awq(tensors, module)
        elif by == "modelopt" and part == "weight" and module + ".weight_scale" in tensors:
            out[module + ".weight"] = modelopt(tensors, module)
        elif by == "mxfp4" and name.endswith("_blocks"):
            out[name[:-7]] = gpt_oss(tensors, name[:-7])
    return out


# ---- small checkpoints: random codes and scales ------------------------------------------------------------------

R = torch.Generator().manual_seed(6)


def bits(n, *shape):
    return torch.randint(0, 1 << n, shape, generator=R)


def scales(dtype, *shape):
    return ((torch.rand(shape, generator=R) + 0.1) * 0.02 * (1 - 2 * bits(1, *shape))).to(dtype)


def words(*shape):
    return bits(32, *shape).to(torch.int64).sub(1 << 31).to(torch.int32)


def f8(*shape):
    b = bits(8, *shape).to(torch.uint8)
    b[(b & 0x7F) == 0x7F] = 0x11
    return b.view(torch.float8_e4m3fn)


def ct(fmt, weights, **more):
    return {"quantization_config": dict({"quant_method": "compressed-tensors", "format": fmt, "ignore": ["lm_head", "re:.*norm.*"],
            "quantization_status": "compressed",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}}, **more)}


def ints(group, symmetric=True):
    return {"num_bits": 4, "type": "int", "symmetric": symmetric, "strategy": "group" if group else "channel",
            "group_size": group, "actorder": None, "block_structure": None, "dynamic": False}


def packed(module, n, k, group, dtype, symmetric=True):
    t = {module + ".weight_packed": words(n, k // 8), module + ".weight_shape": torch.tensor([n, k]),
         module + ".weight_scale": scales(dtype, n, k // group if group else 1)}
    if not symmetric:
        zero = (bits(4, n, k // group if group else 1) - 8).to(torch.int8)
        t[module + ".weight_zero_point"] = pack_to_int32(zero, 4, packed_dim=0).contiguous()
    return t


def gptq_parts(module, n, k, group, zero):
    return {module + ".qweight": words(k // 8, n), module + ".scales": scales(torch.float16, k // group, n),
            module + ".qzeros": words(k // group, n // 8) if zero is None else torch.full((k // group, n // 8), zero, dtype=torch.int32),
            module + ".g_idx": torch.arange(k, dtype=torch.int32) // group}


def nvfp4_parts(module, n, k, names, tensor):
    codes, block, whole = names
    return {module + codes: bits(8, n, k // 2).to(torch.uint8), module + block: f8(n, k // 16), module + whole: torch.tensor(tensor)}


def made():
    A, B = "model.layers.0.mlp.up_proj", "model.layers.0.self_attn.q_proj"
    yield "ct-int4", ct("pack-quantized", ints(32)), packed(A, 19, 96, 32, torch.bfloat16) | packed(B, 3, 256, 32, torch.bfloat16)
    yield "ct-int4-g64", ct("pack-quantized", ints(64)), packed(A, 17, 192, 64, torch.bfloat16) | packed(B, 5, 64, 64, torch.float16)
    yield "ct-int4-g128", ct("pack-quantized", ints(128)), packed(A, 9, 384, 128, torch.bfloat16)
    yield "ct-int4-channel", ct("pack-quantized", ints(None)), packed(A, 9, 288, None, torch.bfloat16)
    yield "ct-int4-zeros", ct("pack-quantized", ints(128, False)), \
        packed(A, 13, 256, 128, torch.bfloat16, False) | packed(B, 8, 128, 128, torch.float16, False)
    floats = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}
    yield "ct-f8", ct("float-quantized", floats), \
        {A + ".weight": f8(11, 160), A + ".weight_scale": scales(torch.bfloat16, 11, 1),
         B + ".weight": f8(6, 70), B + ".weight_scale": scales(F32, 6, 1), B + ".input_scale": torch.tensor([1.0])}
    yield "ct-f8-tensor", ct("float-quantized", dict(floats, strategy="tensor")), \
        {A + ".weight": f8(11, 256), A + ".weight_scale": torch.tensor([0.0123])}
    yield "ct-nvfp4", ct("nvfp4-pack-quantized", dict(floats, num_bits=4, strategy="tensor_group", group_size=16)), \
        nvfp4_parts(A, 7, 160, (".weight_packed", ".weight_scale", ".weight_global_scale"), [3017.3]) | {A + ".input_global_scale": torch.tensor([2.0])}
    yield "ct-mxfp4", ct("mxfp4-pack-quantized", dict(floats, num_bits=4, strategy="group", group_size=32)), \
        {A + ".weight_packed": bits(8, 7, 80).to(torch.uint8), A + ".weight_scale": (bits(4, 7, 5) + 115).to(torch.uint8)}
    yield "fp8-blocks", {"quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                         "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"]}}, \
        {A + ".weight": f8(130, 160), A + ".weight_scale_inv": scales(F32, 2, 2), B + ".weight": f8(3, 135),
         B + ".weight_scale_inv": scales(F32, 1, 2), "lm_head.weight": scales(torch.bfloat16, 4, 8)}
    for name, fmt, zero in (("gptq", "gptq", None), ("gptq-v2", "gptq_v2", None), ("gptq-sevens", None, 0x77777777),
                            ("gptq-eights", "gptq", -0x77777778)):
        q = {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": False, "sym": zero is not None}
        if fmt:
            q["checkpoint_format"] = fmt
        yield name, {"quantization_config": q}, gptq_parts(A, 24, 192, 64, zero)
    a = gptq_parts(A, 24, 256, 128, None)
    yield "awq", {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm",
                  "modules_to_not_convert": None}}, \
        {A + ".qweight": words(256, 3), A + ".qzeros": a[A + ".qzeros"], A + ".scales": a[A + ".scales"]}
    q = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "model.layers.*.mlp.gate*"]}
    yield "modelopt-nvfp4", {"quantization_config": q}, \
        nvfp4_parts(A, 7, 192, (".weight", ".weight_scale", ".weight_scale_2"), 0.00033) | {A + ".input_scale": torch.tensor(0.5)}
    yield "modelopt-f8", {"quantization_config": dict(q, quant_algo="FP8")}, \
        {A + ".weight": f8(5, 128), A + ".weight_scale": torch.tensor(0.0041), A + ".input_scale": torch.tensor(0.5)}
    yield "mxfp4", {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}}, \
        {"model.layers.0.mlp.experts.down_proj_blocks": bits(8, 2, 5, 3, 16).to(torch.uint8),
         "model.layers.0.mlp.experts.down_proj_scales": (bits(4, 2, 5, 3) + 115).to(torch.uint8),
         B + ".weight": scales(torch.bfloat16, 4, 8)}


def read(path):
    tensors = {}
    for f in sorted(os.listdir(path)):
        if f.endswith(".safetensors"):
            with safe_open(os.path.join(path, f), "pt") as s:
                tensors |= {k: s.get_tensor(k) for k in s.keys()}
    return tensors, json.load(open(os.path.join(path, "config.json")))


def main():
    if len(sys.argv) == 3:
        for name, (fmt, values) in decode(*read(sys.argv[1])).items():
            print(line(sys.argv[2], name, fmt, values))
        return
    out = []
    for name, config, tensors in made():
        path = os.path.join(HERE, "../data/quantised", name)
        os.makedirs(path, exist_ok=True)
        with open(os.path.join(path, "config.json"), "w") as f:
            json.dump(dict({"architectures": ["LlamaForCausalLM"]}, **config), f, indent=1)
            f.write("\n")
        save_file({k: v.contiguous() for k, v in tensors.items()}, os.path.join(path, "model.safetensors"))
        out += [line(name, w, fmt, v) for w, (fmt, v) in decode(*read(path)).items()]
    with open(os.path.join(HERE, "formats.txt"), "w") as f:
        f.write("\n".join(out) + "\n")


main()
