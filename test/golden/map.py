#!/usr/bin/env python3
"""Maps, from checkpoint to logits: the two of examples/maps, and one of latent attention.

deepspeed-moe.json: the tensors of data/families/mixtral under the names of a DeepSpeed-MoE export. The file must have
the same descriptor and the same values as under the published names, and agree with the golden values.

A map of DeepSeek-V2, whose keys have other names, gives the same file as the family.

home-made.json: a small model with random weights, against a reference in double precision below.

Prints TAP. Standard library only.
"""
import ctypes, json, math, os, random, shutil, struct, subprocess, sys, tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
BUILD = os.environ.get("COLIBRI_BUILD", os.path.join(ROOT, "build"))
MAPS = os.path.join(ROOT, "examples", "maps")
TMP = tempfile.TemporaryDirectory()
tests = []


def program(name):
    return os.path.join(BUILD, "bin", name)


def run(*cmd):
    p = subprocess.run(cmd, capture_output=True, text=True)
    if p.returncode:
        raise AssertionError(f"{os.path.basename(cmd[0])}: status {p.returncode}: {p.stdout[-300:]}{p.stderr[-300:]}")
    return p.stdout


def read_tensors(path):
    with open(path, "rb") as f:
        raw = f.read()
    n = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8:8 + n]), raw[8 + n:]


def write_tensors(path, header, data):
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


# -- a DeepSpeed-MoE export --------------------------------------------------------------------------------------------

def export_deepspeed(src, dst):
    new = {".block_sparse_moe.gate.": ".mlp.deepspeed_moe.gate.wg.",
           ".block_sparse_moe.experts.": ".mlp.deepspeed_moe.experts.deepspeed_experts.",
           ".w1.": ".gate_proj.", ".w3.": ".up_proj.", ".w2.": ".down_proj."}

    def renamed(name):
        for a, b in new.items():
            name = name.replace(a, b)
        return name

    shutil.copytree(src, dst)
    for f in os.listdir(dst):
        path = os.path.join(dst, f)
        if f.endswith(".safetensors"):
            header, data = read_tensors(path)
            write_tensors(path, {renamed(k): v for k, v in header.items()}, data)
        elif f.endswith(".index.json"):
            with open(path) as x:
                index = json.load(x)
            index["weight_map"] = {renamed(k): v for k, v in index["weight_map"].items()}
            with open(path, "w") as x:
                json.dump(index, x)
    path = os.path.join(dst, "config.json")
    with open(path) as f:
        c = json.load(f)
    layers = list(range(c["num_hidden_layers"]))
    c["model_type"] = "moe_llama"
    c["moe"] = {"num_experts": [c.pop("num_local_experts")] * len(layers), "top_k_experts": c.pop("num_experts_per_tok"),
                "moe_layers_idx": layers, "use_residual": False, "capacity_factor": 1.5, "ep_size": 1, "min_capacity": 0}
    with open(path, "w") as f:
        json.dump(c, f)


def deepspeed():
    src = os.path.join(HERE, "..", "data", "families", "mixtral")
    export, plain, mapped = (os.path.join(TMP.name, x) for x in ("export", "plain.bin", "mapped.bin"))
    use = ["--map", os.path.join(MAPS, "deepspeed-moe.json")]
    export_deepspeed(src, export)
    run(program("colibri-convert"), "-q", "--dtype", "int4", src, "-o", plain)
    run(program("colibri-convert"), "-q", "--dtype", "int4", *use, export, "-o", mapped)
    run(program("colibri-inspect"), "--diff", plain, mapped)  # status 1 if a field or a value differs
    run(program("colibri-inspect"), "--against", export, *use, mapped)
    run(sys.executable, os.path.join(HERE, "check.py"), "--build", BUILD, "--dtype", "f32", *use, export)


# -- all that a family says, said by a map -----------------------------------------------------------------------------

LATENT = {
    "name": "latent",
    "config": {
        "mla.q": "q_lora_rank", "mla.kv": "kv_lora_rank", "mla.plain": "qk_nope_dim", "mla.turned": "qk_rope_dim",
        "mla.value": "value_dim", "turning": "rope_scaling", "base": "rope_theta", "moe.groups": ["n_group"],
        "moe.kept": "top_groups", "moe.method": {"field": "group_score", "values": {"group_limited_greedy": "max"}},
        "moe.scale": "routed_scale", "moe.shared": "shared_experts", "moe.from": "first_dense_layers",
        "moe.width": "expert_size", "intermediate_size": "dense_size", "moe_layer_freq": {"equals": 1},
        "attention_bias": {"equals": False}, "norm_topk_prob": "topk_normalise", "scoring_func": {"equals": "softmax"},
        "seq_aux": None, "ep_size": None,
    },
    "descriptor": {"attention": "mla", "rope": "interleaved", "router": "softmax_topk", "lora_norm_eps": 1e-6, "yarn_scales_attention": True},
    "tensors": {
        "model.layers.#.self_attn.q_a_proj.weight": "q_a", "model.layers.#.self_attn.q_a_layernorm.weight": "q_a_norm",
        "model.layers.#.self_attn.q_b_proj.weight": "q", "model.layers.#.self_attn.kv_a_proj_with_mqa.weight": "kv_a",
        "model.layers.#.self_attn.kv_a_layernorm.weight": "kv_a_norm", "model.layers.#.self_attn.kv_b_proj.weight": "kv_b",
    },
}


def latent():
    src = os.path.join(HERE, "..", "data", "families", "deepseek_v2")
    folder, plain, mapped, own = (os.path.join(TMP.name, x) for x in ("latent", "latent.bin", "latent-map.bin", "latent.json"))
    shutil.copytree(src, folder)
    with open(os.path.join(folder, "config.json")) as f:
        c = json.load(f)
    names = {"q_lora_rank": "mla.q", "kv_lora_rank": "mla.kv", "qk_nope_head_dim": "mla.plain", "qk_rope_head_dim": "mla.turned",
             "v_head_dim": "mla.value", "rope_scaling": "turning", "rope_theta": "base", "n_group": "moe.groups",
             "topk_group": "moe.kept", "topk_method": "moe.method", "routed_scaling_factor": "moe.scale", "n_shared_experts": "moe.shared",
             "first_k_dense_replace": "moe.from", "moe_intermediate_size": "moe.width"}
    for old, new in names.items():
        outer, _, inner = new.rpartition(".")
        (c.setdefault(outer, {}) if outer else c)[inner] = c.pop(old)
    del c["model_type"]
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(c, f)
    with open(own, "w") as f:
        json.dump(LATENT, f)
    run(program("colibri-convert"), "-q", src, "-o", plain)
    run(program("colibri-convert"), "-q", "--map", own, folder, "-o", mapped)
    run(program("colibri-inspect"), "--diff", plain, mapped)


# -- a home-made model -------------------------------------------------------------------------------------------------

CONFIG = {
    "arch": "tinker", "width": 32, "depth": 3, "vocab": 47, "context": 64, "heads": 4, "kv_heads": 2, "head_width": 12,
    "attention_kind": ["full", "local", "full"], "score_cap": 4.0, "rotary": {"base": 300.0, "dims": 8},
    "norm": {"kind": "layernorm", "eps": 1e-3}, "mlp": {"kind": "geglu", "width": 40},
    "moe": {"experts": 5, "active": 2, "width": 24, "shared": 2, "first": 1, "balance_loss": 0.01},
    "embedding_scale": 3.0, "logit_cap": 6.0, "dropout": 0.1, "end_token": [3, 46],
}


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def as_stored(tensors):
    """What the model's author saved: q, k and v in one tensor, o and the router transposed, experts stacked."""
    t, turn = dict(tensors), lambda rows: [list(c) for c in zip(*rows)]
    for b in [n[:-len("att.q")] for n in tensors if n.endswith("att.q")]:
        q, k, v = (t.pop(b + "att." + x)[1] for x in "qkv")
        t[b + "att.qkv"] = ([len(q + k + v), len(q[0])], q + k + v)
        for name in ("att.o", "moe.route"):
            if b + name in t:
                (rows, cols), m = t[b + name]
                t[b + name] = ([cols, rows], turn(m))
        if b + "moe.route" in t:
            g, u = (t.pop(b + "moe.shared." + x)[1] for x in "gu")
            t[b + "moe.shared.gu"] = ([len(g + u), len(g[0])], g + u)
            ins, outs, n = [], [], CONFIG["moe"]["experts"]
            for e in range(n):
                g, u, d = (t.pop(f"{b}moe.x{e}.{x}")[1] for x in "gud")
                ins += turn([row for pair in zip(g, u) for row in pair])
                outs += d
            t[b + "moe.in"] = ([n, len(ins) // n, len(ins[0])], ins)
            t[b + "moe.out"] = ([n, len(outs) // n, len(outs[0])], outs)
    return t


def make_home_made(folder):
    """Returns the tensors as {name: rows}; a vector is one row."""
    rnd, c, t = random.Random(5), CONFIG, {}
    d, h, kv, w, moe = c["width"], c["heads"], c["kv_heads"], c["head_width"], c["moe"]

    def make(name, *shape, mean=0.0, scale=None):
        scale = scale or 1.5 / math.sqrt(shape[-1])
        rows = [[f32(rnd.gauss(mean, scale)) for _ in range(shape[-1])] for _ in range(shape[0] if len(shape) > 1 else 1)]
        t[name] = (list(shape), rows)

    make("tokens", c["vocab"], d, scale=0.5)
    for layer in range(c["depth"]):
        b = f"blocks.{layer}."
        for n in ("n1", "n2"):
            make(b + n + ".g", d, mean=1.0, scale=0.2)
            make(b + n + ".b", d, scale=0.2)
        for name, heads in (("q", h), ("k", kv), ("v", kv)):
            make(b + "att." + name, heads * w, d)
            make(b + "att." + name + "_b", heads * w, scale=0.3)
        make(b + "att.o", d, h * w)
        mlps = {"mlp.": c["mlp"]["width"]}
        if layer >= moe["first"]:
            make(b + "moe.route", moe["experts"], d, scale=0.6)
            make(b + "moe.route_b", moe["experts"], scale=0.5)
            make(b + "moe.train.load", moe["experts"])
            mlps = {f"moe.x{e}.": moe["width"] for e in range(moe["experts"])} | {"moe.shared.": moe["shared"] * moe["width"]}
        for name, inner in mlps.items():
            make(b + name + "g", inner, d)
            make(b + name + "u", inner, d)
            make(b + name + "d", d, inner)
    make("n.g", d, mean=1.0, scale=0.2)
    make("n.b", d, scale=0.2)
    make("head", c["vocab"], d)
    make("head_b", c["vocab"], scale=0.5)

    os.mkdir(folder)
    header, data = {}, b""
    for name, (shape, rows) in as_stored(t).items():
        raw = b"".join(struct.pack(f"<{len(r)}f", *r) for r in rows)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    write_tensors(os.path.join(folder, "model.safetensors"), header, data)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(c, f)
    return {name: rows for name, (_, rows) in t.items()}


def product(rows, x):
    return [sum(a * b for a, b in zip(row, x)) for row in rows]


def add(*vectors):
    return [sum(v) for v in zip(*vectors)]


def layer_norm(x, g, b):
    mean = sum(x) / len(x)
    scale = 1 / math.sqrt(sum((v - mean) ** 2 for v in x) / len(x) + CONFIG["norm"]["eps"])
    return [(v - mean) * scale * gi + bi for v, gi, bi in zip(x, g[0], b[0])]


def softmax(x):
    e = [math.exp(v - max(x)) for v in x]
    return [v / sum(e) for v in e]


def geglu(t, name, x):
    gelu = [0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v ** 3))) for v in product(t[name + "g"], x)]
    return product(t[name + "d"], [a * b for a, b in zip(gelu, product(t[name + "u"], x))])


def rotate(x, pos):
    """Neighbours are pairs; only the first dimensions turn."""
    r, out = CONFIG["rotary"], list(x)
    for i in range(0, r["dims"], 2):
        angle = pos / r["base"] ** (i / r["dims"])
        out[i] = x[i] * math.cos(angle) - x[i + 1] * math.sin(angle)
        out[i + 1] = x[i + 1] * math.cos(angle) + x[i] * math.sin(angle)
    return out


def attention(t, b, kind, xs):
    c = CONFIG
    w, group, cap = c["head_width"], c["heads"] // c["kv_heads"], c["score_cap"]

    def heads(name, x, pos):
        flat = add(product(t[b + name], x), t[b + name + "_b"][0])
        split = [flat[i:i + w] for i in range(0, len(flat), w)]
        return split if name == "att.v" else [rotate(v, pos) for v in split]

    q, k, v = ([heads(n, x, pos) for pos, x in enumerate(xs)] for n in ("att.q", "att.k", "att.v"))
    out = []
    for pos in range(len(xs)):
        first = max(0, pos - 4) if kind == "local" else 0
        mixed = []
        for h in range(c["heads"]):
            scores = [sum(a * b for a, b in zip(q[pos][h], k[p][h // group])) / math.sqrt(w) for p in range(first, pos + 1)]
            p = softmax([cap * math.tanh(s / cap) for s in scores])
            mixed += [sum(p[i] * v[first + i][h // group][d] for i in range(len(p))) for d in range(w)]
        out.append(product(t[b + "att.o"], mixed))
    return out


def mlp(t, b, layer, x):
    moe = CONFIG["moe"]
    if layer < moe["first"]:
        return geglu(t, b + "mlp.", x)
    logits = add(product(t[b + "moe.route"], x), t[b + "moe.route_b"][0])
    best = sorted(range(len(logits)), key=lambda e: -logits[e])[:moe["active"]]
    weight = softmax([logits[e] for e in best])
    chosen = [[p * y for y in geglu(t, f"{b}moe.x{e}.", x)] for p, e in zip(weight, best)]
    return add(*chosen, geglu(t, b + "moe.shared.", x))


def reference(t, ids):
    c = CONFIG
    xs = [[c["embedding_scale"] * v for v in t["tokens"][i]] for i in ids]
    for layer in range(c["depth"]):
        b = f"blocks.{layer}."
        normed = [layer_norm(x, t[b + "n1.g"], t[b + "n1.b"]) for x in xs]
        xs = [add(x, y) for x, y in zip(xs, attention(t, b, c["attention_kind"][layer], normed))]
        xs = [add(x, mlp(t, b, layer, layer_norm(x, t[b + "n2.g"], t[b + "n2.b"]))) for x in xs]
    out = []
    for x in xs:
        logits = add(product(t["head"], layer_norm(x, t["n.g"], t["n.b"])), t["head_b"][0])
        out += [c["logit_cap"] * math.tanh(v / c["logit_cap"]) for v in logits]
    return out


def infer(path, ids, vocab):
    lib = ctypes.CDLL(os.path.abspath(os.path.join(BUILD, "libcolibri.so")))
    lib.colibri_load_model.restype = ctypes.c_void_p
    lib.colibri_last_error.restype = ctypes.c_char_p
    lib.colibri_infer.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p]
    model = lib.colibri_load_model(path.encode())
    assert model, lib.colibri_last_error().decode()
    out = (ctypes.c_float * (len(ids) * vocab))()
    rc = lib.colibri_infer(model, (ctypes.c_int32 * len(ids))(*ids), out, 1, len(ids), None)
    assert rc == 0, lib.colibri_last_error().decode()
    return out


def home_made():
    folder, path = os.path.join(TMP.name, "home"), os.path.join(TMP.name, "home.bin")
    tensors = make_home_made(folder)
    run(program("colibri-convert"), "-q", "--dtype", "f32", "--map", os.path.join(MAPS, "home-made.json"), folder, "-o", path)
    assert json.loads(run(program("colibri-inspect"), path))["generation"]["eos_token"] == CONFIG["end_token"]
    ids = random.Random(9).sample(range(CONFIG["vocab"]), 14)
    want, got = reference(tensors, ids), infer(path, ids, CONFIG["vocab"])
    worst = max(abs(a - b) for a, b in zip(want, got))
    assert max(map(abs, want)) > 1, "the reference says nothing"
    assert worst <= 1e-4, f"logits differ by up to {worst:.3g}"
    print(f"# max |difference| {worst:.2g} of logits up to {max(map(abs, want)):.2g}")


for n, (name, test) in enumerate([("a DeepSpeed-MoE export", deepspeed), ("latent attention", latent), ("a home-made model", home_made)], 1):
    try:
        test()
        print(f"ok {n} {name}", flush=True)
        tests.append(True)
    except AssertionError as e:
        print(f"not ok {n} {name}\n# {e}", flush=True)
        tests.append(False)
print(f"1..{len(tests)}")
sys.exit(not all(tests))
