#!/usr/bin/env python3
"""Checkpoints of test/data/families on the emulated CUDA backend.

The programs of the sanitised build run with an emulated GPU. Two comparisons:

f32     with the reference's golden.json. Everything is f32, the KV cache too: no logit may be off by more than 2e-5
        of the largest in its row (4e-6 is measured). With --kv-dtype f16 (in test-full, prompts of some length) keys,
        values and probabilities have 11 bits of significand: rounding errors of 2^-12 add up over the layers like a
        random walk, and 0.4 % is allowed. The greedy text must be the reference's, up to a place where its token is
        within twice that of ours.
others  with the CPU backend on the same file, and with --kv-dtype int8 on both: the root mean square of what is off in
        a row, against that of the row.
        Activations are rounded to 16 bits here (f16, or bf16 with its 8 bits), to int8 on the CPU if the file is
        quantised. That may turn a close choice of the router the other way, which changes a row and what follows it by
        a tenth and more, and is no mistake; so the bound is on the median row.

cudnn   attention of prompts by cuDNN, in chunks, with our own on the same device and an fp16 file: the worst row, but
        for those where the router chose otherwise. In families of which it can do no layer, the same bits.

A wrong kernel, mask or position changes most logits by the order of their size.
In `make test` short cases of each checkpoint; in `make test-full` all, and more types. usage: golden.py [FOLDER...].
Prints TAP. COLIBRI_GOLDEN_JOBS: so many files at a time.
"""
import array, concurrent.futures, glob, json, math, os, statistics, subprocess, sys, tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
BIN = os.environ.get("COLIBRI_TEST_BIN", os.path.join(HERE, "../../build/san/bin"))
FULL = os.environ.get("COLIBRI_TEST_FULL") == "1"
BOUND = {"f32": 2e-5, "f32 f16": 0.004, "fp16": 0.01, "fp16 int8": 0.02, "bf16": 0.05, "source": 0.05, "int8": 0.06, "int4": 0.06}
BOUND["cudnn"] = 0.01
# PhiMoE's router leaves out experts whose score is some way below the best one's: one that is close to that border comes
# and goes with rounding. (The GPU's median row is nearer to the f32 file than the CPU's: 0.05 and 0.11.)
CLOSE_CHOICES = {"phimoe_longrope": {"int8": 0.15, "int4": 0.15}}
GREEDY = 8 if FULL else 3
# Whether cuDNN has attention of some layers.
BY_CUDNN = {"mixtral": True, "exaone_moe": True, "deepseek_v2": False}
if FULL:
    BY_CUDNN |= {"qwen3_moe": True, "glm4_moe_noqk": True, "llama4_text": True, "mixtral_swa": False,
                 "gpt_oss_mxfp4": False}
# With an int8 KV cache in `make test`: plain, latent attention, sinks, chunks.
INT8_CACHE = {"olmoe", "deepseek_v2", "gpt_oss_mxfp4", "llama4_text"}


class Failed(Exception):
    pass


def name_of(folder):
    return os.path.basename(os.path.normpath(folder))


def run(*words, **more):
    env = {**os.environ, "EMU_CUDA": os.environ.get("EMU_CUDA", "devices=1,libraries=1")}
    p = subprocess.run([os.path.join(BIN, words[0]), *words[1:]], capture_output=True, text=True, env=env, **more)
    if p.returncode:
        raise Failed(f"{words[0]}: status {p.returncode}: {p.stderr.strip()[-400:]}")
    return p.stdout


def compute(model, kv, backend, case, n):
    """Logits of all rows, and n tokens of text."""
    vocab = len(case["logits_last"])
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "logits")
        out = run("colibri-run", "--backend", backend, "--ids", "-n", str(n), "--logits", path, *kv, model,
                  input=" ".join(map(str, case["input_ids"])))
        with open(path, "rb") as f:
            all_rows = array.array("f", f.read())
    return [all_rows[i:i + vocab] for i in range(0, len(all_rows), vocab)], [int(t) for t in out.split()]


def against_reference(model, kv, case, bound):
    """How far the worst logit is off."""
    rows, text = compute(model, kv, "cuda", case, GREEDY)
    last = len(case["input_ids"]) - 1
    triples = [(last, t, v) for t, v in enumerate(case["logits_last"])]
    s = case.get("logits_sample") or {"positions": [], "token_ids": [], "values": []}
    for pos, values in zip(s["positions"], s["values"]):
        triples += [(pos, t, v) for t, v in zip(s["token_ids"], values)]
    off = [abs(rows[pos][t] - v) / max(map(abs, rows[pos])) for pos, t, v in triples]
    want = case["greedy"][:GREEDY]
    for i, (ours, theirs) in enumerate(zip(text, want)):
        row = rows[last + i]
        if ours != theirs and max(row) - row[theirs] > 2 * bound * max(map(abs, row)):
            raise Failed(f"greedy {text}, reference {want}")
        if ours != theirs:
            break
    else:
        if len(text) != len(want):
            raise Failed(f"greedy {text}, reference {want}")
    return max(off) if all(x == x for x in off) else math.inf


def against_cpu(model, kv, case, _):
    """How far the median row is off."""
    (ours, _), (theirs, _) = compute(model, kv, "cuda", case, 1), compute(model, kv, "cpu", case, 1)
    off = list(map(apart, ours, theirs))
    return statistics.median(x if x == x else math.inf for x in off)


def apart(p, q):
    return math.sqrt(sum((a - b) ** 2 for a, b in zip(p, q)) / sum(b * b for b in q))


def against_own(model, _, case, bound):
    """How far rows are off, nine of ten of them; -1: they have the same bits."""
    (own, _), (theirs, _) = (compute(model, ["--prefill-chunk", "50", "--attention", a], "cuda", case, 1)
                             for a in ("own", "cudnn"))
    off = sorted(x if x == x else math.inf for x in map(apart, theirs, own))
    return off[len(off) * 9 // 10] if theirs != own else -1


def check(folder, how):
    """(passed, text); `how`: a type of weights, and one of the KV cache if it is not the default."""
    dtype, *kv = how.split()
    kv = ["--kv-dtype", *kv] if kv else []
    name = name_of(folder)
    bound = CLOSE_CHOICES.get(name, {}).get(how, BOUND[how])
    with tempfile.TemporaryDirectory() as tmp, open(os.path.join(folder, "golden.json")) as f:
        cases, model = json.load(f)["cases"], os.path.join(tmp, "m.bin")
        compare, least = {"f32": (against_reference, 1), "cudnn": (against_own, 100)}.get(dtype, (against_cpu, 30))
        if not FULL:
            cases = [c for c in cases if len(c["input_ids"]) > least][:1]
        try:
            run("colibri-convert", "-q", "--dtype", "fp16" if how == "cudnn" else dtype, folder, "-o", model)
            worst = max(compare(model, kv, c, bound) for c in cases if len(c["input_ids"]) > least or how == "f32")
        except Failed as e:
            return False, str(e)
        if how == "cudnn" and BY_CUDNN[name] != (worst >= 0):
            return False, "the bits of our own kernels" if worst < 0 else f"off by {worst:.2g}: not our own kernels"
        return worst <= bound, f"off by {worst:.2g}, at most {bound}"


def types_of(folder):
    with open(os.path.join(folder, "config.json")) as f:
        config = json.load(f)
    stored = config.get("quantization_config", {}).get("quant_method", config["torch_dtype"])
    own = {"bfloat16": ["bf16"], "mxfp4": ["source"]}.get(stored, [])
    if HAS_CUDNN and name_of(folder) in BY_CUDNN:
        own.append("cudnn")
    if name_of(folder) in INT8_CACHE or FULL:
        own.append("fp16 int8")
    return ["f32", "fp16", *own] + (["f32 f16", "int8", "int4"] if FULL else [])


HAS_CUDNN = "cuDNN 9" in run("colibri-run", "--version")
folders = sys.argv[1:] or sorted(glob.glob(os.path.join(HERE, "../data/families/*/")))
jobs = [(f, t) for f in folders for t in types_of(f)]
failed = 0
pool = concurrent.futures.ThreadPoolExecutor(int(os.environ.get("COLIBRI_GOLDEN_JOBS", "1")))
for i, ((folder, how), (ok, text)) in enumerate(zip(jobs, pool.map(check, *zip(*jobs))), 1):
    failed += not ok
    print(f"{'ok' if ok else 'not ok'} {i} {name_of(folder)} {how}: {text}", flush=True)
print(f"1..{len(jobs)}")
sys.exit(bool(failed))
