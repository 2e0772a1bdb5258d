#!/usr/bin/env python3
"""Checkpoints of test/data/families on the emulated CUDA backend, against the reference's golden.json.

The programs of the sanitised build run with an emulated GPU. A logit may be off by BOUND times the largest of its row:
activations are rounded to 16 bits between products (f16: 11 bits of significand, bf16: 8), keys, values and
probabilities to f16; the sums are f32. Rounding errors of about 2^-12 (f16) and 2^-9 (bf16) per product add up over the
products of all layers like a random walk; the bounds are some times what is measured, and far below what a wrong
kernel, mask or position does (that changes logits by the order of their size).
The greedy text must be the reference's, up to a place where the reference's token is within twice the bound of ours:
from there on the texts are two different ones.

In `make test` one short case of each checkpoint in the type that it is stored in; in `make test-full` all cases, f32
and, where the matrices are BF16 or MXFP4, bf16. usage: golden.py [FOLDER...]. Prints TAP.
"""
import array, glob, json, os, subprocess, sys, tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
BIN = os.environ.get("COLIBRI_TEST_BIN", os.path.join(HERE, "../../build/san/bin"))
FULL = os.environ.get("COLIBRI_TEST_FULL") == "1"
BOUND = {"f32": 0.004, "bf16": 0.04}
GREEDY = 8 if FULL else 3


def run(*words, **more):
    return subprocess.run(words, capture_output=True, text=True, env={**os.environ, "EMU_CUDA": "devices=1"}, **more)


def check_rows(case, row_of, bound):
    """Yields problems of the prompt's logits; the last thing is the largest difference, in bounds."""
    vocab, last = len(case["logits_last"]), len(case["input_ids"]) - 1
    triples = [(last, t, v) for t, v in enumerate(case["logits_last"])]
    s = case.get("logits_sample") or {"positions": [], "token_ids": [], "values": []}
    for pos, values in zip(s["positions"], s["values"]):
        triples += [(pos, t, v) for t, v in zip(s["token_ids"], values)]
    worst = 0.0
    for pos, t, v in triples:
        row = row_of(pos)
        off = abs(row[t] - v) / max(max(map(abs, row)), 1e-9)
        worst = max(worst, off) if off == off else float("inf")
    if not worst <= bound:
        yield f"a logit is off by {worst:.3g} of the largest"
    yield worst


def check_text(case, row_of, got, bound):
    """A problem, or None."""
    want = case["greedy"][:GREEDY]
    for i, (ours, theirs) in enumerate(zip(got, want)):
        if ours == theirs:
            continue
        row = row_of(len(case["input_ids"]) - 1 + i)
        margin = (max(row) - row[theirs]) / max(map(abs, row))
        return None if margin <= 2 * bound else f"greedy {got}, reference {want}"
    return None if len(got) == len(want) else f"greedy {got}, reference {want}"


def check_case(model, case, bound, tmp):
    logits, vocab = os.path.join(tmp, "logits"), len(case["logits_last"])
    p = run(os.path.join(BIN, "colibri-run"), "--backend", "cuda", "--ids", "-n", str(GREEDY), "--logits", logits, model,
            input=" ".join(map(str, case["input_ids"])))
    if p.returncode:
        yield f"status {p.returncode}: {p.stderr.strip()[-400:]}"
        yield 0.0
        return
    with open(logits, "rb") as f:
        rows = array.array("f", f.read())
    row_of = lambda i: rows[i * vocab:(i + 1) * vocab]
    yield from check_rows(case, row_of, bound)
    problem = check_text(case, row_of, [int(t) for t in p.stdout.split()], bound)
    if problem:
        yield problem
        yield 0.0


def check(folder, dtype):
    """(passed, text)"""
    with tempfile.TemporaryDirectory() as tmp, open(os.path.join(folder, "golden.json")) as f:
        cases, model = json.load(f)["cases"], os.path.join(tmp, "m.bin")
        p = run(os.path.join(BIN, "colibri-convert"), "-q", "--dtype", dtype, folder, "-o", model)
        if p.returncode:
            return False, f"convert: {p.stderr.strip()[-300:]}"
        if not FULL:
            cases = [c for c in cases if len(c["input_ids"]) > 1][:1]
        worst, problems = 0.0, []
        for case in cases:
            found = list(check_case(model, case, BOUND[dtype], tmp))
            problems += [f"{len(case['input_ids'])} tokens: {x}" for x in found if isinstance(x, str)]
            worst = max([worst] + [x for x in found if isinstance(x, float)])
        return not problems, "; ".join(problems) or f"max |difference| {worst:.2g} of the largest logit"


def types_of(folder):
    with open(os.path.join(folder, "config.json")) as f:
        config = json.load(f)
    stored = config.get("quantization_config", {}).get("quant_method", config["torch_dtype"])
    narrow = stored in ("bfloat16", "mxfp4")
    return ["f32", "bf16"] if narrow and FULL else ["bf16" if narrow else "f32"]


folders = sys.argv[1:] or sorted(glob.glob(os.path.join(HERE, "../data/families/*/")))
jobs = [(f, t) for f in folders for t in types_of(f)]
failed = 0
for i, (folder, dtype) in enumerate(jobs, 1):
    ok, text = check(folder, dtype)
    failed += not ok
    print(f"{'ok' if ok else 'not ok'} {i} {os.path.basename(os.path.normpath(folder))} {dtype}: {text}", flush=True)
print(f"1..{len(jobs)}")
sys.exit(bool(failed))
