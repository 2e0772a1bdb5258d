#!/usr/bin/env python3
"""Compares converted checkpoints with a reference implementation: logits, and greedy text two ways.

usage: check.py [--build DIR] [--dtype T] [--tol X] [--greedy N] [--map FILE] [--may-refuse NAME]... [FOLDER...]

golden.json of a folder holds cases computed in float32: input ids, the logits of the last position, sampled logits of
others, and the greedy continuation. Logits come from libcolibri.so by ctypes, as an embedder calls it; the continuation
comes from whole-sequence logits, and from colibri-run --ids, which decodes token by token through the KV cache.

Without a FOLDER: every folder of test/data/families in f32, and those whose matrices are BF16 or MXFP4 also in bf16.
MXFP4 is kept with --dtype source as well: its weights are exact, but activations meet them in 8 bits, so logits may be
off by ACTIVATIONS (0.15 is measured). Prints TAP.
Exit status 0: all agree (a folder named by --may-refuse may instead be refused with status 3).
"""
import argparse, ctypes, glob, json, os, subprocess, sys, tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ap = argparse.ArgumentParser(usage=__doc__)
ap.add_argument("--build", default=os.environ.get("COLIBRI_BUILD", "build"))
ap.add_argument("--dtype")
ap.add_argument("--tol", type=float, default=2e-3)
ap.add_argument("--greedy", type=int, default=8, help="greedy tokens compared per case")
ap.add_argument("--map", help="for colibri-convert")
ap.add_argument("--may-refuse", action="append", default=[])
ap.add_argument("--one", help=argparse.SUPPRESS)
ap.add_argument("folder", nargs="*")
args = ap.parse_args()


def program(name):
    return os.path.join(args.build, "bin", name)


class Config(ctypes.Structure):
    _fields_ = [("top_k", ctypes.c_int32), ("temperature", ctypes.c_float), ("seed", ctypes.c_int32),
                ("max_new_tokens", ctypes.c_int32), ("stream_id", ctypes.c_int32), ("enable_profiling", ctypes.c_bool)]


class Model:
    def __init__(self, path):
        lib = self.lib = ctypes.CDLL(os.path.abspath(os.path.join(args.build, "libcolibri.so")))
        lib.colibri_load_model.restype = ctypes.c_void_p
        lib.colibri_load_model.argtypes = [ctypes.c_char_p]
        lib.colibri_last_error.restype = ctypes.c_char_p
        lib.colibri_unload_model.argtypes = [ctypes.c_void_p]
        lib.colibri_infer.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_int32), ctypes.POINTER(ctypes.c_float),
                                      ctypes.c_size_t, ctypes.c_size_t, ctypes.POINTER(Config)]
        self.model = lib.colibri_load_model(path.encode())
        if not self.model:
            raise RuntimeError("load: " + lib.colibri_last_error().decode())

    def infer(self, ids, vocab):
        """Logits of all positions, flat. What is not written stays NaN, and NaN differs from everything."""
        out = (ctypes.c_float * (len(ids) * vocab))()
        ctypes.memset(out, 0xFF, ctypes.sizeof(out))
        rc = self.lib.colibri_infer(self.model, (ctypes.c_int32 * len(ids))(*ids), out, 1, len(ids), ctypes.byref(Config()))
        if rc:
            raise RuntimeError(f"colibri_infer: status {rc}: {self.lib.colibri_last_error().decode()}")
        return out


def check_case(model, path, case):
    """Yields problems; the last thing is the largest difference."""
    ids, vocab = list(case["input_ids"]), len(case["logits_last"])
    out = model.infer(ids, vocab)
    pairs = list(zip(out[(len(ids) - 1) * vocab:], case["logits_last"]))
    s = case.get("logits_sample") or {"positions": [], "token_ids": [], "values": []}
    for pos, row in zip(s["positions"], s["values"]):
        pairs += [(out[pos * vocab + t], v) for t, v in zip(s["token_ids"], row)]
    wrong = [p for p in pairs if not abs(p[0] - p[1]) <= args.tol]
    if wrong:
        yield f"{len(wrong)} of {len(pairs)} logits differ, e.g. {wrong[0][0]:.5g} for {wrong[0][1]:.5g}"
    want, text = case["greedy"][:args.greedy], []
    for _ in want:
        row = model.infer(ids + text, vocab)[(len(ids) + len(text) - 1) * vocab:]
        text.append(max(range(vocab), key=lambda t: row[t]))
    if text != want:
        yield f"greedy by whole sequences {text}, reference {want}"
    p = subprocess.run([program("colibri-run"), "--ids", "-n", str(len(want)), path], input=" ".join(map(str, ids)),
                       capture_output=True, text=True)
    if p.returncode or [int(t) for t in p.stdout.split()] != want:
        yield f"colibri-run --ids: status {p.returncode}, {p.stdout.split()} {p.stderr.strip()[-200:]}, reference {want}"
    yield max((abs(a - b) for a, b in pairs if a == a), default=0.0)


def check_folder(folder):
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "m.bin")
        own = ["--map", args.map] if args.map else []
        p = subprocess.run([program("colibri-convert"), "-q", "--dtype", args.dtype, *own, folder, "-o", path], capture_output=True, text=True)
        if p.returncode:
            print(f"convert: status {p.returncode}: {(p.stderr.strip().splitlines() or ['no message'])[0]}")
            return 3 if p.returncode == 3 else 1
        with open(os.path.join(folder, "golden.json")) as f:
            cases = json.load(f)["cases"]
        worst, problems = 0.0, []
        try:
            model = Model(path)
            for n, case in enumerate(cases):
                *found, most = check_case(model, path, case)
                problems += [f"case {n} ({len(case['input_ids'])} tokens): {x}" for x in found]
                worst = max(worst, most)
        except RuntimeError as e:
            problems.append(str(e))
        print("; ".join(problems) if problems else f"max |difference| {worst:.2g}")
        return bool(problems)


def run(folder, dtype, tol):
    """In a process of its own, so that a crash is a result too. Returns (status, text)."""
    cmd = [sys.executable, os.path.abspath(__file__), "--build", args.build, "--dtype", dtype, "--tol", str(tol),
           "--greedy", str(args.greedy), "--one", folder] + (["--map", args.map] if args.map else [])
    try:
        p = subprocess.run(cmd, capture_output=True, text=True, timeout=600)
    except subprocess.TimeoutExpired:
        return 1, "no answer in 600 s"
    return p.returncode, p.stdout.strip() or f"died with status {p.returncode}: {p.stderr.strip()[-300:]}"


ACTIVATIONS = 0.2


def stored_as(folder):
    """bfloat16, float16, float32, fp8, mxfp4"""
    with open(os.path.join(folder, "config.json")) as f:
        config = json.load(f)
    return config.get("quantization_config", {}).get("quant_method", config["torch_dtype"])


if args.one:
    sys.exit(check_folder(args.one))
jobs = [(f, args.dtype or "f32", args.tol) for f in args.folder]
if not jobs:
    own = sorted(glob.glob(os.path.join(HERE, "..", "data", "families", "*", "")))
    jobs = [(f, "f32", args.tol) for f in own]
    jobs += [(f, "bf16", args.tol) for f in own if stored_as(f) in ("bfloat16", "mxfp4")]
    jobs += [(f, "source", ACTIVATIONS) for f in own if stored_as(f) == "mxfp4"]
failed = 0
for i, (folder, dtype, tol) in enumerate(jobs, 1):
    name = os.path.basename(os.path.normpath(folder))
    rc, text = run(folder, dtype, tol)
    if rc == 3 and name in args.may_refuse:
        rc, text = 0, "refused: " + text
    failed += rc != 0
    print(f"{'not ok' if rc else 'ok'} {i} {name} {dtype}: {text}", flush=True)
print(f"1..{len(jobs)}")
sys.exit(bool(failed))
