#!/usr/bin/env python3
"""Makes checkpoints with exactly one defect each from the two controls in families/, and from others there.

usage: make_bad.py OUT_DIR
Writes OUT_DIR/NAME/ for every case and OUT_DIR/cases: a line per case, NAME and then the words that the message must
contain, separated by tabs. Every case must be refused with status 3. Standard library only.
"""
import json, os, shutil, struct, sys

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "families")
OUT = sys.argv[1]
SHARD1, SHARD2 = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX, MODEL = "model.safetensors.index.json", "model.safetensors"
W2 = "model.layers.1.block_sparse_moe.experts.2.w2.weight"
W1 = "model.layers.0.block_sparse_moe.experts.1.w1.weight"
ROUTER = "model.layers.0.block_sparse_moe.gate.weight"
cases = []


def start(name, words, control="control_ok"):
    """A fresh copy; returns its path."""
    path = os.path.join(OUT, name)
    shutil.copytree(os.path.join(HERE, control), path)
    cases.append("\t".join([name] + list(words)))
    return path


def read(path):
    with open(path, "rb") as f:
        return f.read()


def write(path, data):
    with open(path, "wb") as f:
        f.write(data)


def split(path):
    """Header (a dict in file order) and data of a safetensors file."""
    raw = read(path)
    n = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8:8 + n]), raw[8 + n:]


def join(path, header, data):
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    write(path, struct.pack("<Q", len(text)) + text + data)


def config(name, words, change=None, raw=None):
    path = os.path.join(start(name, words), "config.json")
    if raw is not None:
        write(path, raw(read(path)))
        return
    c = json.loads(read(path))
    change(c)
    write(path, json.dumps(c, indent=2).encode())


def header(name, words, change):
    """change(header, data) edits in place or returns new (header, data)."""
    path = os.path.join(start(name, words), MODEL)
    h, data = split(path)
    result = change(h, data)
    join(path, *(result or (h, data)))


def bytes_of(name, words, change, control="control_ok", file=MODEL):
    path = os.path.join(start(name, words, control), file)
    write(path, change(read(path)))


def folder(name, words, change, control="control_ok_sharded"):
    change(start(name, words, control))


def poke(name, words, tensor, element, value):
    """Overwrites one bf16 element."""
    path = os.path.join(start(name, words), MODEL)
    h, data = split(path)
    at = h[tensor]["data_offsets"][0] + 2 * element
    join(path, h, data[:at] + struct.pack("<H", value) + data[at + 2:])


def without(tensor):
    """Removes a tensor and its bytes."""
    def change(h, data):
        a, b = h.pop(tensor)["data_offsets"]
        for t in h.values():
            if "data_offsets" in t and t["data_offsets"][0] >= b:
                t["data_offsets"] = [x - (b - a) for x in t["data_offsets"]]
        return h, data[:a] + data[b:]
    return change


def edit(tensor, **fields):
    return lambda h, data: h[tensor].update(fields)


def append(tensor, dtype, shape, n):
    """Adds a tensor of n bytes at the end."""
    def change(h, data):
        h[tensor] = dict(dtype=dtype, shape=shape, data_offsets=[len(data), len(data) + n])
        return h, data + bytes(n)
    return change


def setting(**fields):
    return lambda c: c.update(fields)


def family(name, control, words, change=None, drop=None, **fields):
    """A checkpoint of another family: other settings, or a tensor less."""
    path = start(name, words, control)
    c = json.loads(read(os.path.join(path, "config.json")))
    c.update(fields)
    if change:
        change(c)
    write(os.path.join(path, "config.json"), json.dumps(c, indent=2).encode())
    if drop:
        h, data = split(os.path.join(path, MODEL))
        join(os.path.join(path, MODEL), *without(drop)(h, data))


def family_cases():
    glm, exaone, v2, qwen = "glm4_moe_noqk", "exaone_moe", "deepseek_v2", "qwen3_moe"
    family("family_group_no_divisor", glm, ["'n_group': is 3, which does not divide 8 experts"], n_group=3)
    family("family_kept_groups", glm, ["'topk_group': is 3, more than 'n_group', which is 2"], topk_group=3)
    family("family_top_k_of_groups", glm, ["'topk_group': keeps 4 experts, fewer than 'num_experts_per_tok', which is 5"], num_experts_per_tok=5)
    family("family_top_k_of_groups_max", v2, ["'topk_group': keeps 3 experts, fewer than 'num_experts_per_tok', which is 4"], topk_group=1)
    family("family_group_zero", v2, ["'n_group'", "from 1 to", "found 0"], n_group=0)
    family("family_no_correction", glm, ["'model.layers.1.mlp.gate.e_score_correction_bias' is missing"],
           drop="model.layers.1.mlp.gate.e_score_correction_bias")
    family("family_no_correction_exaone", exaone, ["'model.layers.2.mlp.e_score_correction_bias' is missing"],
           drop="model.layers.2.mlp.e_score_correction_bias")
    family("family_scoring", glm, ["'scoring_func': is \"softmax\", which is not known; known: sigmoid"], scoring_func="softmax")
    family("family_topk_method", v2, ["'topk_method': is \"noaux_tc\", which is not known"], topk_method="noaux_tc")
    family("family_normalise_number", qwen, ["'norm_topk_prob': true or false is expected, found 1"], norm_topk_prob=1)
    family("family_alias_contradiction", qwen, ["'num_experts': is 10, but 'num_local_experts' is 12"], num_local_experts=12)
    family("family_alias_contradiction_three", qwen, ["'n_routed_experts': is 8, but 'num_experts' is 10"], n_routed_experts=8)
    family("family_rope_both", v2, ["'rope_scaling' and 'rope_parameters'"], rope_parameters={"rope_type": "yarn", "factor": 16.0})
    family("family_rope_key", v2, ["'rope_scaling.beta_mid' is 3"], lambda c: c["rope_scaling"].update(beta_mid=3))
    family("family_mla_no_rank", v2, ["'kv_lora_rank' is missing"], lambda c: c.pop("kv_lora_rank"))
    family("family_untied_without_output", "mixtral_swa", ["'lm_head.weight' is missing"], tie_word_embeddings=False)
    family("family_shared_absent", glm, ["problems", "shared_experts.gate_proj.weight' is surplus"], n_shared_experts=0)
    family("family_layer_types", qwen, ["'layer_types': layer 1 is sliding, but the other keys say no window for it"],
           layer_types=["full_attention", "sliding_attention"])
    family("family_qk_head_dim", v2, ["'qk_head_dim': is 48; only 32 is known"], qk_head_dim=48)
    family("family_not_run", qwen, ["'model_type': 'qwen3_next' needs 'linear_attention'"], model_type="qwen3_next")


# Dense models as they are published.
DENSE = {
    "llama": {"architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 128000,
              "eos_token_id": 128001, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
              "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "llama", "num_attention_heads": 32,
              "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
              "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_type": "llama3",
                               "original_max_position_embeddings": 8192}, "tie_word_embeddings": False, "vocab_size": 128256},
    "mistral": {"architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096,
                "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32,
                "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
                "sliding_window": 4096, "tie_word_embeddings": False, "vocab_size": 32000},
    "gpt2": {"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1, "bos_token_id": 50256,
             "embd_pdrop": 0.1, "eos_token_id": 50256, "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024,
             "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257,
             "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}}},
}


def dense_cases():
    for name, c in DENSE.items():
        write(os.path.join(start("dense_" + name, [f"'model_type': '{name}' is a dense model; only Mixture-of-Experts models are served"]),
                           "config.json"), json.dumps(c).encode())


def config_cases():
    e = "num_local_experts"
    config("config_fewer_experts", ["8 problems", "experts.2.w1.weight' is surplus", "has shape [3, 32], but [2, 32]"], setting(**{e: 2}))
    config("config_more_experts", ["problems", "experts.3.w1.weight' is missing"], setting(**{e: 5}))
    config("config_more_layers", ["problems", "model.layers.2.input_layernorm.weight' is missing"], setting(num_hidden_layers=3))
    config("config_fewer_layers", ["problems", "is surplus: config.json has 1 layers"], setting(num_hidden_layers=1))
    config("config_no_num_experts", ["config.json", "'num_local_experts' is missing"], lambda c: c.pop(e))
    config("config_experts_twice", ["'num_experts': is 4, but 'num_local_experts' is 3"], setting(num_experts=4))
    config("config_heads_not_divisible", ["'num_attention_heads' is 4", "'num_key_value_heads', which is 3"], setting(num_key_value_heads=3))
    config("config_huge_vocab", ["'vocab_size'", "1000000000000"], setting(vocab_size=10**12))
    config("config_negative_hidden", ["'hidden_size'", "-32"], setting(hidden_size=-32))
    config("config_string_number", ["'hidden_size'", '"32"'], setting(hidden_size="32"))
    config("config_fraction", ["'num_hidden_layers'", "2.5"], setting(num_hidden_layers=2.5))
    config("config_topk_gt_experts", ["'num_experts_per_tok' is 4"], setting(num_experts_per_tok=4))
    config("config_topk_zero", ["'num_experts_per_tok'", "found 0"], setting(num_experts_per_tok=0))
    config("config_unknown_act", ["'hidden_act'", "gelu_new_turbo"], setting(hidden_act="gelu_new_turbo"))
    config("config_unknown_model_type", ["'model_type'", "mixtrol"], setting(model_type="mixtrol"))
    config("config_no_model_type", ["'model_type' is missing"], lambda c: c.pop("model_type"))
    config("config_unknown_rope", ["rope_type", "hyper_rope"], setting(rope_scaling={"type": "hyper_rope", "factor": 2.0}))
    config("config_rope_no_factor", ["'rope_scaling.factor' is missing"], setting(rope_scaling={"rope_type": "linear"}))
    config("config_rope_unknown_key", ["'rope_scaling.wobble'"], setting(rope_scaling={"rope_type": "linear", "factor": 2.0, "wobble": 1}))
    config("config_rope_dtype", ["'rope_scaling.dtype'"], setting(rope_scaling={"rope_type": "linear", "factor": 2.0, "dtype": 1}))
    config("config_rope_top_k", ["'rope_scaling.top_k'"], setting(rope_scaling={"rope_type": "linear", "factor": 2.0, "top_k": 1}))
    config("config_rope_types", ["'rope_scaling.type': is \"linear\", but 'rope_scaling.rope_type' is \"yarn\""],
           setting(rope_scaling={"type": "linear", "rope_type": "yarn", "factor": 2.0}))
    config("config_rope_thetas", ["'rope_parameters.rope_theta': is 10000.0, but 'rope_theta' outside is 20000"],
           setting(rope_theta=20000, rope_parameters={"rope_type": "default", "rope_theta": 1e4}))
    config("config_rope_twice", ["'rope_scaling' and 'rope_parameters'"],
           setting(rope_scaling={"type": "linear", "factor": 2.0}, rope_parameters={"rope_type": "default", "rope_theta": 1e4}))
    config("config_rope_not_object", ["'rope_scaling'", "an object is expected"], setting(rope_scaling=2.0))
    config("config_unknown_key", ["byte", "'attention_wobble' is 0.5", "--ignore-key attention_wobble"], setting(attention_wobble=0.5))
    config("config_quantised", ["'quantization_config.quant_method': 'gptq' is not known"], setting(quantization_config={"quant_method": "gptq"}))
    config("config_bad_eos", ["'eos_token_id'"], setting(eos_token_id="</s>"))
    config("config_eos_beyond", ["'eos_token_id'", "from 0 to 262"], setting(eos_token_id=[2, 263]))
    config("config_not_json", ["config.json: byte"], raw=lambda b: b[:300])
    config("config_empty", ["config.json: byte 0"], raw=lambda b: b"")
    config("config_duplicate_key", ["'hidden_size'", "duplicate"], raw=lambda b: b.replace(b'"vocab_size"', b'"hidden_size": 64, "vocab_size"'))
    config("config_deep", ["config.json: byte", "deep"], raw=lambda b: b[:-2] + b',"x":' + b"[" * 100000 + b"]" * 100000 + b"}")
    config("config_lfs_pointer", ["config.json", "Git LFS pointer"], raw=lambda b: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n")
    folder("config_missing", ["no config.json"], lambda d: os.remove(os.path.join(d, "config.json")))
    d = start("generation_bad", ["generation_config.json: byte", "'temperature'"])
    write(os.path.join(d, "generation_config.json"), b'{"temperature": "hot"}')


def shard_cases():
    lfs = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 70440\n"
    at = ["model.safetensors", "byte"]
    bytes_of("zero_byte_file", ["model.safetensors: 0 bytes"], lambda b: b"")
    bytes_of("five_byte_file", ["model.safetensors: 5 bytes"], lambda b: b[:5])
    bytes_of("truncated_at_8_bytes", at + ["goes beyond the end of the file (8 bytes)"], lambda b: b[:8])
    bytes_of("truncated_in_header", at + ["goes beyond the end"], lambda b: b[:2000])
    bytes_of("truncated_after_header", at + ["only 0 bytes of data", "truncated"], lambda b: b[:8 + struct.unpack("<Q", b[:8])[0]])
    bytes_of("truncated_100_bytes", at + ["truncated"], lambda b: b[:-100])
    bytes_of("truncated_one_byte", at + ["truncated"], lambda b: b[:-1])
    bytes_of("header_length_zero", at + ["header length of 0"], lambda b: struct.pack("<Q", 0) + b[8:])
    bytes_of("header_length_2_63", at + ["9223372036854775808"], lambda b: struct.pack("<Q", 1 << 63) + b[8:])
    bytes_of("header_length_max", at + ["18446744073709551615"], lambda b: b"\xff" * 8 + b[8:])
    bytes_of("header_longer_than_file", at + ["goes beyond the end"], lambda b: struct.pack("<Q", len(b) + 1000) + b[8:])
    bytes_of("lfs_pointer", ["Git LFS pointer", "git lfs pull"], lambda b: lfs)
    bytes_of("html_page", ["HTML page"], lambda b: b"\n<!DOCTYPE html>\n<html><body>404</body></html>\n")
    bytes_of("trailing_garbage", at + ["1000 bytes after the last tensor"], lambda b: b + b"\x55" * 1000)
    header("header_not_json", at, lambda h, d: (b"this is no json", d))
    header("header_array", at + ["an object"], lambda h, d: (b"[1,2,3]", d))
    header("header_cut_json", at, lambda h, d: (json.dumps(h).encode()[:4000], d))
    header("header_non_utf8", at + ["UTF-8"], lambda h, d: (json.dumps(h).encode().replace(b"self_attn.v_proj", b"self_attn.\xff_proj", 1), d))
    header("header_deep", at + ["deep"], lambda h, d: (b'{"__metadata__":' + b"[" * 100000 + b"]" * 100000 + b"}", d))
    header("metadata_number", at + ["__metadata__", "texts"], lambda h, d: ({**h, "__metadata__": {"format": 3}}, d))
    header("duplicate_key", at + [W2, "duplicate"], lambda h, d: (json.dumps(h)[:-1].encode() + b',"' + W2.encode() + b'":' + json.dumps(h[W1]).encode() + b"}", d))
    header("unknown_field", at + [W2, "a key that the format does not have"], edit(W2, stride=2))
    header("no_offsets", at + [W2, "'data_offsets' is missing"], lambda h, d: h[W2].pop("data_offsets") and None)
    header("dtype_unknown", at + [W2, "Q4_K"], edit(W2, dtype="Q4_K"))
    header("dtype_i32", [W2, "stored as I32"], edit(W2, dtype="I32", shape=[32, 16]))
    header("dtype_i8_router", [ROUTER, "stored as I8"], edit(ROUTER, dtype="I8", shape=[3, 64]))
    header("dtype_f64", [W2, "stored as F64"], edit(W2, dtype="F64", shape=[32, 8]))
    header("wrong_shape", [W2, "has shape [64, 16], but [32, 32] is expected"], edit(W2, shape=[64, 16]))
    header("wrong_rank", [W2, "has shape [1024]"], edit(W2, shape=[1024]))
    header("shape_bytes_mismatch", at + [W2, "[32, 64]"], edit(W2, shape=[32, 64]))
    header("shape_overflow", at + [W2], edit(W2, shape=[1 << 32, 1 << 32]))
    header("too_many_dimensions", at + [W2, "dimensions"], edit(W2, shape=[1] * 30 + [32, 32]))
    header("offsets_beyond_file", at + [W2, "truncated"], lambda h, d: h[W2].update(data_offsets=[len(d), len(d) + 2048]))
    header("offsets_negative", at + [W2, "-64"], edit(W2, data_offsets=[-64, 1984]))
    header("offsets_reversed", at + [W2, "reversed"], lambda h, d: h[W2].update(data_offsets=h[W2]["data_offsets"][::-1]))
    header("offsets_three", at + [W2], lambda h, d: h[W2]["data_offsets"].append(5))
    header("overlapping_offsets", at + [W2, W1, "overlaps"], lambda h, d: h[W2].update(data_offsets=h[W1]["data_offsets"]))
    header("half_overlapping_offsets", at + [W2, "overlaps"], lambda h, d: h[W2].update(data_offsets=[x - 1024 for x in h[W2]["data_offsets"]]))
    header("hole", at + ["belong to no tensor"], lambda h, d: (h.pop(W2), None)[1])
    header("missing_tensor", [W2, "is missing"], without(W2))
    header("missing_norm", ["'model.norm.weight' is missing"], without("model.norm.weight"))
    header("missing_router", [ROUTER, "is missing"], without(ROUTER))
    header("extra_expert", ["experts.3.w1.weight' is surplus"], append("model.layers.0.block_sparse_moe.experts.3.w1.weight", "BF16", [32, 32], 2048))
    header("extra_tensor", ["'model.wobble' is surplus"], append("model.wobble", "BF16", [], 2))
    poke("nan_expert", at + [W2, "element 682 (row 21, column 10) is NaN"], W2, 682, 0x7FC1)
    poke("nan_norm", at + ["'model.norm.weight': element 21 is NaN"], "model.norm.weight", 21, 0x7FC0)
    poke("nan_embed", at + ["'model.embed_tokens.weight': element 100 (row 3, column 4) is NaN"], "model.embed_tokens.weight", 100, 0xFFC0)
    poke("inf_expert", at + [W1, "is infinite"], W1, 682, 0x7F80)
    poke("neg_inf_router", at + [ROUTER, "is minus infinite"], ROUTER, 64, 0xFF80)


def index_cases():
    def index(change):
        def edit_index(d):
            path = os.path.join(d, INDEX)
            x = json.loads(read(path))
            change(x["weight_map"])
            write(path, json.dumps(x).encode())
        return edit_index

    def in_index(name):
        return lambda d: write(os.path.join(d, INDEX), read(os.path.join(d, INDEX)).replace(SHARD2.encode(), name))

    remove = lambda name: lambda d: os.remove(os.path.join(d, name))
    key = "model.embed_tokens.weight"
    folder("index_missing_shard", ["'model-00003-of-00003.safetensors' is missing"], index(lambda m: m.update({key: "model-00003-of-00003.safetensors"})))
    folder("shard_deleted", [SHARD2, "is missing"], remove(SHARD2))
    folder("index_wrong_shard", ["problems", "the index says it is in", key], index(lambda m: m.update({k: SHARD2 for k in list(m)[:6]})))
    folder("index_lacks_tensor", [key, "is not in the index"], index(lambda m: m.pop(key)))
    folder("index_extra_tensor", ["'model.ghost.weight'", "no shard has it"], index(lambda m: m.update({"model.ghost.weight": SHARD1})))
    folder("index_path_traversal", [INDEX, "../control_ok/model.safetensors"], in_index(b"../control_ok/model.safetensors"))
    folder("index_absolute_path", [INDEX, "/etc/passwd"], in_index(b"/etc/passwd"))
    folder("index_dot_dot", [INDEX, "'..'"], in_index(b".."))
    folder("index_not_json", [INDEX, "byte"], lambda d: write(os.path.join(d, INDEX), read(os.path.join(d, INDEX))[:1500]))
    folder("index_empty_map", [INDEX, "weight_map", "empty"], lambda d: write(os.path.join(d, INDEX), b'{"weight_map":{}}'))
    folder("index_no_map", [INDEX, "weight_map", "missing"], lambda d: write(os.path.join(d, INDEX), b"{}"))
    folder("tensor_in_two_shards", ["is in '%s' and in '%s'" % (SHARD1, SHARD2)], lambda d: double(d, key))
    folder("truncated_shard", [SHARD2, "truncated"], lambda d: cut(os.path.join(d, SHARD2)))
    folder("zero_byte_shard", [SHARD2, "0 bytes"], lambda d: write(os.path.join(d, SHARD2), b""))
    folder("shard_is_folder", [SHARD2, "folder"], lambda d: (os.remove(os.path.join(d, SHARD2)), os.mkdir(os.path.join(d, SHARD2))))
    folder("shard_is_pipe", [SHARD2, "pipe"], lambda d: (os.remove(os.path.join(d, SHARD2)), os.mkfifo(os.path.join(d, SHARD2))))
    folder("model_beside_index", [MODEL, "remove one"], lambda d: shutil.copy(os.path.join(HERE, "control_ok", MODEL), d))
    folder("no_weights", ["no weights"], remove(MODEL), "control_ok")
    folder("only_pytorch", ["'pytorch_model.bin' is not read"], lambda d: os.rename(os.path.join(d, MODEL), os.path.join(d, "pytorch_model.bin")), "control_ok")


def stored_cases():
    """Weights as codes and scales, and several matrices in one tensor."""
    fp8, mxfp4, granite, llama4 = "deepseek_v3_fp8", "gpt_oss_mxfp4", "granitemoe", "llama4_text"
    q = "model.layers.0.self_attn.q_a_proj.weight"
    scale = q + "_scale_inv"
    single = lambda d: MODEL if os.path.exists(os.path.join(d, MODEL)) else SHARD1

    def tensors(name, words, control, change):
        d = start(name, words, control)
        path = os.path.join(d, single(d))
        h, data = split(path)
        join(path, *(change(h, data) or (h, data)))
        return d

    def settings(name, words, control, change):
        path = os.path.join(start(name, words, control), "config.json")
        c = json.loads(read(path))
        change(c)
        write(path, json.dumps(c).encode())

    def put(tensor, at, raw):
        def change(h, data):
            at0 = h[tensor]["data_offsets"][0] + at
            return h, data[:at0] + raw + data[at0 + len(raw):]
        return change

    f32 = lambda v: struct.pack("<f", v)
    quant = lambda **k: lambda c: c["quantization_config"].update(k)
    no_quant = lambda c: c.pop("quantization_config")
    at = ["byte", f"'{scale}': element 1 is"]
    tensors("fp8_scale_missing", [f"tensor '{scale}' is missing: '{q}' is stored as F8_E4M3"], fp8, without(scale))
    tensors("fp8_scale_zero", at + ["is 0; a scale is finite and above 0"], fp8, put(scale, 4, f32(0)))
    tensors("fp8_scale_negative", at + ["is -0.5;"], fp8, put(scale, 4, f32(-0.5)))
    tensors("fp8_scale_nan", at + ["is NaN;"], fp8, put(scale, 4, f32(float("nan"))))
    tensors("fp8_scale_infinite", at + ["is inf;"], fp8, put(scale, 4, f32(float("inf"))))
    tensors("fp8_scale_shape", [scale, "has shape [2, 1], but [1, 2] is expected"], fp8, edit(scale, shape=[2, 1]))
    tensors("fp8_scale_dtype", [scale, "stored as I32, but F32, F16 or BF16"], fp8, edit(scale, dtype="I32"))
    tensors("fp8_scale_of_bf16", ["'model.norm.weight_scale_inv' is surplus"], fp8, append("model.norm.weight_scale_inv", "F32", [1, 2], 8))
    tensors("fp8_code_nan", [q, "element 161 (row 1, column 1) is NaN"], fp8, put(q, 161, b"\x7f"))
    tensors("fp8_code_minus_nan", [q, "element 161 (row 1, column 1) is NaN"], fp8, put(q, 161, b"\xff"))
    tensors("fp8_too_large", [q, "(row 0, column 0) is minus infinite"], fp8, put(scale, 0, f32(3e38)))
    tensors("fp8_embedding", ["'model.embed_tokens.weight' is stored as F8_E4M3, but"], fp8,
            lambda h, d: (h["model.embed_tokens.weight"].update(dtype="F8_E4M3", shape=[269, 320]), None)[1])
    tensors("fp8_norm", ["'model.norm.weight' is stored as F8_E4M3, but"], fp8, edit("model.norm.weight", dtype="F8_E4M3", shape=[320]))
    settings("fp8_not_announced", [q, "is stored as F8_E4M3, but config.json has no 'quantization_config'"], fp8, no_quant)
    settings("fp8_block_zero", ["'quantization_config.weight_block_size'", "1 or more"], fp8, quant(weight_block_size=[128, 0]))
    settings("fp8_block_three", ["'quantization_config.weight_block_size'"], fp8, quant(weight_block_size=[128, 128, 128]))
    settings("fp8_other_blocks", [scale, "has shape [1, 2], but [1, 3] is expected"], fp8, quant(weight_block_size=[128, 64]))
    settings("fp8_static", ["'quantization_config.activation_scheme': is 'static'"], fp8, quant(activation_scheme="static"))
    settings("fp8_format", ["'quantization_config.fmt': is 'e5m2'"], fp8, quant(fmt="e5m2"))
    settings("fp8_unknown_key", ["'quantization_config.wobble'"], fp8, quant(wobble=1))
    settings("fp8_no_method", ["'quantization_config.quant_method' is missing"], fp8, lambda c: c["quantization_config"].pop("quant_method"))
    settings("fp8_config_number", ["'quantization_config'", "an object is expected"], fp8, setting(quantization_config=8))

    experts = "model.layers.0.mlp.experts."
    blocks, scales = experts + "gate_up_proj_blocks", experts + "gate_up_proj_scales"
    tensors("mxfp4_scale_nan", [scales, "element 5 is NaN;"], mxfp4, put(scales, 5, b"\xff"))
    tensors("mxfp4_too_large", [blocks, "(expert 0, row 1, column 64) is", "infinite"], mxfp4,
            lambda h, d: put(blocks, 16 * 5, b"\x77" * 16)(*put(scales, 5, b"\xfe")(h, d)))
    tensors("mxfp4_blocks_shape", [blocks, "has shape [10, 128, 16, 3], but [10, 128, 3, 16]"], mxfp4, edit(blocks, shape=[10, 128, 16, 3]))
    tensors("mxfp4_scales_shape", [scales, "has shape [10, 3, 128], but [10, 128, 3]"], mxfp4, edit(scales, shape=[10, 3, 128]))
    tensors("mxfp4_dtype", [blocks, "stored as I8", "U8 is expected"], mxfp4, edit(blocks, dtype="I8"))
    settings("mxfp4_not_announced", [blocks, "MXFP4 blocks, but config.json has no 'quantization_config'"], mxfp4, no_quant)
    settings("mxfp4_as_fp8", [blocks, "MXFP4 blocks, but"], mxfp4, quant(quant_method="fp8"))

    fused = "model.layers.1.block_sparse_moe.input_linear.weight"
    e = "model.layers.1.feed_forward.experts.gate_up_proj"
    tensors("fused_turned", [f"'{fused}' has shape [10, 32, 128], but [10, 64, 64]"], granite, edit(fused, shape=[10, 32, 128]))
    tensors("fused_flat", [f"'{fused}' has shape [640, 64]"], granite, edit(fused, shape=[640, 64]))
    tensors("fused_missing", [f": tensor '{fused}' is missing"], granite, without(fused))
    tensors("fused_nan", [fused, "element 20481 (expert 5, row 0, column 1) is NaN"], granite, put(fused, 40962, b"\xc0\x7f"))
    tensors("fused_nan_turned", [e, "element 12390 (expert 3, row 1, column 38) is NaN"], llama4, put(e, 24780, b"\xc0\x7f"))
    settings("fused_more_experts", [fused, "has shape [10, 64, 64], but [11, 64, 64]"], granite, setting(num_local_experts=11))


def double(d, tensor):
    """Repeats a tensor of the first shard at the end of the second."""
    h1, data1 = split(os.path.join(d, SHARD1))
    h2, data2 = split(os.path.join(d, SHARD2))
    a, b = h1[tensor]["data_offsets"]
    h2[tensor] = dict(h1[tensor], data_offsets=[len(data2), len(data2) + b - a])
    join(os.path.join(d, SHARD2), h2, data2 + data1[a:b])


def cut(path):
    data = read(path)
    write(path, data[:len(data) * 6 // 10])


os.makedirs(OUT)
config_cases()
family_cases()
dense_cases()
shard_cases()
index_cases()
stored_cases()
with open(os.path.join(OUT, "cases"), "w") as f:
    f.write("\n".join(cases) + "\n")
