#!/usr/bin/env python3
"""What checkpoints store as codes and scales, fused or turned, against the same weights stored plainly.

Each checkpoint of data/families that stores weights in a special way is rewritten by the definitions below, and both
are converted: all blocks of the two files must have the same checksums. Then: the checksums of the sources that a file
holds are those of the source files, and the number of threads changes no byte.

Prints TAP. Standard library only.
"""
import json, os, random, shutil, struct, subprocess, sys, tempfile, zlib

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
BUILD = os.environ.get("COLIBRI_BUILD", os.path.join(ROOT, "build"))
FAMILIES = os.path.join(HERE, "..", "data", "families")
TMP = tempfile.TemporaryDirectory()
MODEL, INDEX = "model.safetensors", "model.safetensors.index.json"


def run(*cmd, rc=0):
    p = subprocess.run(cmd, capture_output=True, text=True)
    if p.returncode != rc:
        raise AssertionError(f"{os.path.basename(cmd[0])}: status {p.returncode}: {p.stdout[-300:]}{p.stderr[-300:]}")
    return p.stdout


def convert(folder, name, *options):
    out = os.path.join(TMP.name, name)
    run(os.path.join(BUILD, "bin", "colibri-convert"), "-q", "-f", *options, folder, "-o", out)
    return out


def header(path):
    return json.loads(run(os.path.join(BUILD, "bin", "colibri-inspect"), path))


def blocks(path):
    h = header(path)
    return {k: t["crc32"] for k, t in h["tensors"].items()}, [x["crc32"] for x in h["experts"]], h["architecture"]


# -- checkpoints as dictionaries ---------------------------------------------------------------------------------------

def load(folder):
    """{name: (dtype, shape, bytes)}"""
    tensors = {}
    for f in sorted(os.listdir(folder)):
        if f.endswith(".safetensors"):
            with open(os.path.join(folder, f), "rb") as file:
                raw = file.read()
            n = struct.unpack("<Q", raw[:8])[0]
            for k, t in json.loads(raw[8:8 + n]).items():
                if k != "__metadata__":
                    a, b = t["data_offsets"]
                    tensors[k] = t["dtype"], t["shape"], raw[8 + n + a:8 + n + b]
    return tensors


def rewrite(source, name, change, settings=None):
    """A copy of a folder with other tensors in one file, and other settings. Returns its path."""
    folder = os.path.join(TMP.name, name)
    shutil.copytree(os.path.join(FAMILIES, source), folder)
    tensors = change(load(folder))
    for f in os.listdir(folder):
        if f.endswith(".safetensors") or f == INDEX:
            os.remove(os.path.join(folder, f))
    head, data = {}, b""
    for k, (dtype, shape, raw) in tensors.items():
        head[k] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(head).encode()
    with open(os.path.join(folder, MODEL), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)
    path = os.path.join(folder, "config.json")
    with open(path) as f:
        config = json.load(f)
    (settings or (lambda c: None))(config)
    with open(path, "w") as f:
        json.dump(config, f)
    return folder


def plain(config):
    del config["quantization_config"]


# -- definitions -------------------------------------------------------------------------------------------------------

def f32(v):
    return struct.unpack("<f", struct.pack("<f", v))[0]


def e4m3(code):
    e, m = code >> 3 & 15, code & 7
    v = (8 + m) * 2.0 ** (e - 10) if e else m * 2.0 ** -9
    return -v if code & 128 else v


def fp8_to_f32(tensors, block=128):
    out = {}
    for k, (dtype, shape, raw) in tensors.items():
        if dtype == "F8_E4M3":
            rows, cols = shape
            _, grid, scale = tensors[k + "_scale_inv"]
            scale = struct.unpack(f"<{len(scale) // 4}f", scale)
            v = [f32(e4m3(raw[r * cols + c]) * scale[r // block * grid[1] + c // block]) for r in range(rows) for c in range(cols)]
            out[k] = "F32", shape, struct.pack(f"<{len(v)}f", *v)
        elif not k.endswith("_scale_inv"):
            out[k] = dtype, shape, raw
    return out


E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]


def bf16(v):
    return struct.pack("<f", v)[2:]


def mxfp4_to_bf16(tensors):
    """Blocks [expert][row][group][16] to [expert][column][row]."""
    out = {}
    for k, (dtype, shape, raw) in tensors.items():
        if k.endswith("_blocks"):
            n, rows, groups, _ = shape
            scale = tensors[k.replace("_blocks", "_scales")][2]
            cols, new = 32 * groups, []
            for e in range(n):
                m = []
                for r in range(rows):
                    at = (e * rows + r) * groups
                    line = []
                    for g in range(at, at + groups):
                        for b in raw[16 * g:16 * g + 16]:
                            line += [bf16(E2M1[b & 15] * 2.0 ** (scale[g] - 127)), bf16(E2M1[b >> 4] * 2.0 ** (scale[g] - 127))]
                    m.append(line)
                new += [m[r][c] for c in range(cols) for r in range(rows)]
            out[k[:-7]] = "BF16", [n, cols, rows], b"".join(new)
        elif not k.endswith("_scales"):
            out[k] = dtype, shape, raw
    return out


def without_halves(tensors):
    """Gate and up of a shared MLP as granitemoeshared has them, made of granitemoe's first two experts."""
    out = dict(tensors)
    for k, (dtype, shape, raw) in tensors.items():
        if k.endswith("block_sparse_moe.input_linear.weight"):
            base = k.replace("block_sparse_moe.input_linear.weight", "shared_mlp.")
            n, rows, cols = shape
            out[base + "input_linear.weight"] = dtype, [rows, cols], raw[:rows * cols * 2]
            down = tensors[k.replace("input", "output")]
            out[base + "output_linear.weight"] = dtype, down[1][1:], down[2][:down[1][1] * down[1][2] * 2]
    return out


# -- tests -------------------------------------------------------------------------------------------------------------

def same_blocks(source, change, options, settings=plain):
    folder = rewrite(source, source + "_plain", change, settings)
    for o in options:
        a = blocks(convert(os.path.join(FAMILIES, source), "a.bin", *o))
        b = blocks(convert(folder, "b.bin", *o))
        assert a[2] == b[2], "architectures differ"
        wrong = [k for k in a[0] if a[0][k] != b[0].get(k)]
        assert not wrong, f"{' '.join(o)}: tensors differ: {wrong[:5]}"
        assert a[1] == b[1], f"{' '.join(o)}: experts differ"


def fp8():
    same_blocks("deepseek_v3_fp8", fp8_to_f32, [["--dtype", "f32"], ["--dtype", "int8"], ["--scale", "tensor"]])


def fp8_of_all_experts():
    """A stacked tensor, with blocks that fit neither rows nor columns: random codes, and what they stand for."""
    rng = random.Random(4)

    def shaped(tensors, k):
        n, rows, cols = tensors[k][1]
        grid = -(-rows // 24), -(-cols // 28)
        codes = bytes(rng.choice([c for c in range(256) if c & 127 != 127]) for _ in range(n * rows * cols))
        scales = [f32(rng.uniform(0.001, 0.01)) for _ in range(n * grid[0] * grid[1])]
        return (n, rows, cols), grid, codes, scales

    for source, name in ("granitemoe", "block_sparse_moe.input_linear.weight"), ("llama4_text", "feed_forward.experts.gate_up_proj"):
        coded, decoded = {}, {}
        tensors = load(os.path.join(FAMILIES, source))
        for k in sorted(tensors):
            if not k.endswith(name):
                coded[k] = decoded[k] = tensors[k]
                continue
            (n, rows, cols), grid, codes, scales = shaped(tensors, k)
            at = lambda e, r, c: (e * grid[0] + r // 24) * grid[1] + c // 28
            values = [f32(e4m3(codes[(e * rows + r) * cols + c]) * scales[at(e, r, c)]) for e in range(n) for r in range(rows) for c in range(cols)]
            coded[k] = "F8_E4M3", [n, rows, cols], codes
            coded[k + "_scale_inv"] = "F32", [n, *grid], struct.pack(f"<{len(scales)}f", *scales)
            decoded[k] = "F32", [n, rows, cols], struct.pack(f"<{len(values)}f", *values)
        announced = lambda c: c.update(quantization_config={"quant_method": "fp8", "weight_block_size": [24, 28]})
        a = rewrite(source, source + "_fp8", lambda _: coded, announced)
        b = rewrite(source, source + "_f32", lambda _: decoded)
        assert blocks(convert(a, "a.bin", "--dtype", "f32")) == blocks(convert(b, "b.bin", "--dtype", "f32")), source


def fp8_scales_of_16_bits():
    """Scales may be bf16: those of the checkpoint, rounded, against the same rounded in f32."""
    def rounded(as_bf16):
        def change(tensors):
            for k, (dtype, shape, raw) in list(tensors.items()):
                if k.endswith("_scale_inv"):
                    high = b"".join(raw[i + 2:i + 4] if as_bf16 else b"\0\0" + raw[i + 2:i + 4] for i in range(0, len(raw), 4))
                    tensors[k] = "BF16" if as_bf16 else "F32", shape, high
            return tensors
        return change
    a = rewrite("deepseek_v3_fp8", "scale_bf16", rounded(True))
    b = rewrite("deepseek_v3_fp8", "scale_f32", rounded(False))
    assert blocks(convert(a, "a.bin", "--dtype", "f32")) == blocks(convert(b, "b.bin", "--dtype", "f32"))


def mxfp4():
    same_blocks("gpt_oss_mxfp4", mxfp4_to_bf16, [["--dtype", "f32"], ["--dtype", "bf16"], ["--dtype", "int8"], ["--dtype", "int4"], ["--scale", "tensor"]])


def mxfp4_kept():
    """--dtype source: the publisher's codes and scales, no value differs."""
    path = convert(os.path.join(FAMILIES, "gpt_oss_mxfp4"), "a.bin", "--dtype", "source")
    h = header(path)
    assert {p["dtype"] for x in h["experts"] for p in x["parts"].values()} == {"mxfp4"}
    assert {t["dtype"] for t in h["tensors"].values()} == {"f32", "bf16"}
    found = json.loads(run(os.path.join(BUILD, "bin", "colibri-inspect"), "--json", "--against", os.path.join(FAMILIES, "gpt_oss_mxfp4"), path))
    assert found["equal"] and all(v["max"] == 0 for v in found["values"]), found
    other = convert(os.path.join(FAMILIES, "gpt_oss_mxfp4"), "b.bin", "--dtype", "f32")
    run(os.path.join(BUILD, "bin", "colibri-inspect"), "--diff", path, other)


def mxfp4_kept_but_infinite():
    def change(tensors):
        k = "model.layers.0.mlp.experts.gate_up_proj_"
        d, shape, raw = tensors[k + "blocks"]
        tensors[k + "blocks"] = d, shape, b"\x77" + raw[1:]
        d, shape, raw = tensors[k + "scales"]
        tensors[k + "scales"] = d, shape, b"\xfe" + raw[1:]
        return tensors
    folder = rewrite("gpt_oss_mxfp4", "infinite", change)
    run(os.path.join(BUILD, "bin", "colibri-convert"), "-q", "--dtype", "source", folder, "-o", os.path.join(TMP.name, "c.bin"), rc=3)
    assert not os.path.exists(os.path.join(TMP.name, "c.bin"))


def biases_of_experts():
    """inspect sees a bias of an expert that differs, from another file and from the checkpoint."""
    def change(tensors):
        k = "model.layers.1.mlp.experts.gate_up_proj_bias"
        d, shape, raw = tensors[k]
        at = 2 * (3 * shape[1] + 9)  # of expert 3, up, element 4
        tensors[k] = d, shape, raw[:at] + bf16(7.5) + raw[at + 2:]
        return tensors
    inspect = os.path.join(BUILD, "bin", "colibri-inspect")
    a = convert(os.path.join(FAMILIES, "gpt_oss_mxfp4"), "a.bin", "--dtype", "bf16")
    other = rewrite("gpt_oss_mxfp4", "other_bias", change)
    found = run(inspect, "--diff", a, convert(other, "b.bin", "--dtype", "bf16"), rc=1)
    assert "layers.1.experts.up_bias" in found, found
    found = run(inspect, "--against", other, a, rc=1)
    assert "not a rounding: layers.1.experts.up_bias, expert 3, row 0, column 4" in found, found


def shared_gate_and_up():
    """granitemoeshared: the shared expert equals the first expert, which is checked part by part."""
    def shared(config):
        config.update(model_type="granitemoeshared", shared_intermediate_size=config["intermediate_size"])
    folder = rewrite("granitemoe", "granitemoeshared", without_halves, shared)
    a = convert(folder, "a.bin", "--dtype", "bf16")
    h, raw = header(a), open(a, "rb").read()
    for x in h["experts"]:
        for part, role in ("gate", "shared_gate_proj"), ("up", "shared_up"), ("down", "shared_down"):
            t = h["tensors"][f"layers.{x['layer']}.{role}"]
            at = x["offset"][0] + x["parts"][part]["at"]
            assert raw[at:at + t["size"]] == raw[t["offset"]:t["offset"] + t["size"]], (x["layer"], part)
    assert h["architecture"]["shared_size"] == h["architecture"]["expert_size"]


def llama4_beside_images():
    """The published form: settings in text_config, a prefix before all names, and a model for images."""
    def change(tensors):
        out = {"language_model." + k: t for k, t in tensors.items()}
        out["vision_model.model.layers.0.mlp.fc1.weight"] = "BF16", [2, 3], bytes(12)
        out["multi_modal_projector.linear_1.weight"] = "BF16", [3], bytes(6)
        return out

    def nest(config):
        inner = dict(config, cache_implementation="hybrid", no_rope_layers=[])
        config.clear()
        config.update(model_type="llama4", architectures=["Llama4ForConditionalGeneration"], torch_dtype="bfloat16", text_config=inner,
                      boi_token_index=3, eoi_token_index=5, image_token_index=7, vision_config={"model_type": "llama4_vision_model", "hidden_size": 3})
    same_blocks("llama4_text", change, [["--dtype", "f32"]], nest)


def sources_and_threads():
    for name in "deepseek_v3_fp8", "gpt_oss_mxfp4", "granitemoe", "llama4_text", "deepseek_v2":
        folder = os.path.join(FAMILIES, name)
        for options in ["--dtype", "f32"], ["--dtype", "source"], ["--scale", "tensor"]:
            one = convert(folder, "a.bin", "-t", "1", *options)
            for s in header(one)["source"]:
                with open(os.path.join(folder, s["file"]), "rb") as f:
                    assert zlib.crc32(f.read()) == s["crc32"], (name, s["file"])
            with open(one, "rb") as a, open(convert(folder, "b.bin", "-t", "5", *options), "rb") as b:
                assert a.read() == b.read(), (name, options)


tests = [fp8, fp8_of_all_experts, fp8_scales_of_16_bits, mxfp4, mxfp4_kept, mxfp4_kept_but_infinite, biases_of_experts, shared_gate_and_up, llama4_beside_images, sources_and_threads]
failed = 0
for i, t in enumerate(tests, 1):
    try:
        t()
        print(f"ok {i} {t.__name__}", flush=True)
    except AssertionError as e:
        failed += 1
        print(f"not ok {i} {t.__name__}\n# {str(e).strip()}".replace("\n# ", "\n#   "), flush=True)
print(f"1..{len(tests)}")
sys.exit(bool(failed))
