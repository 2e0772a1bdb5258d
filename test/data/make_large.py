#!/usr/bin/env python3
"""Writes a Mixtral-type checkpoint of 100 MB with made-up weights: large enough to be interrupted.

usage: make_large.py OUT_DIR
"""
import json, os, struct, sys

H, LAYERS, EXPERTS = 512, 8, 8
out = sys.argv[1]
config = dict(model_type="mixtral", hidden_act="silu", rms_norm_eps=1e-5, rope_theta=1e4, max_position_embeddings=512,
              vocab_size=256, hidden_size=H, intermediate_size=H, num_hidden_layers=LAYERS, num_attention_heads=8,
              num_key_value_heads=8, num_local_experts=EXPERTS, num_experts_per_tok=2, tie_word_embeddings=True)
shapes = {"model.embed_tokens.weight": [256, H], "model.norm.weight": [H]}
for layer in range(LAYERS):
    p = f"model.layers.{layer}."
    shapes.update({p + n + ".weight": [H] for n in ("input_layernorm", "post_attention_layernorm")})
    shapes.update({p + f"self_attn.{n}_proj.weight": [H, H] for n in "qkvo"})
    shapes[p + "block_sparse_moe.gate.weight"] = [EXPERTS, H]
    shapes.update({p + f"block_sparse_moe.experts.{e}.{n}.weight": [H, H] for e in range(EXPERTS) for n in ("w1", "w2", "w3")})
header, at = {}, 0
for name, shape in shapes.items():
    n = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
    header[name] = dict(dtype="BF16", shape=shape, data_offsets=[at, at + n])
    at += n
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
os.makedirs(out, exist_ok=True)
with open(os.path.join(out, "model.safetensors"), "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text)
    f.write((struct.pack("<H", 0x3F80) + b"\x17\x3c" * (H - 1)) * (at // (2 * H)))
with open(os.path.join(out, "config.json"), "w") as f:
    json.dump(config, f)
