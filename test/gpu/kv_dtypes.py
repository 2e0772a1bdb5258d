#!/usr/bin/env python3
"""Every type of KV cache on the GPU: how far logits are from the CPU's with the same type, and the speed of decoding.

usage: kv_dtypes.py MODEL_DIR OUT_DIR PROMPT TOKENS. The demo model in f32 (made in MODEL_DIR if it is not there) with
PROMPT tokens of prompt, then TOKENS more. One line; fails when the root mean square of what is off in a row is, in the
median row, more than the type allows.
"""
import array, json, math, os, statistics, subprocess, sys

models, out = sys.argv[1:3]
prompt, tokens = (int(x) for x in sys.argv[3:5])
BOUND = {"f32": 2e-5, "f16": 2e-3, "int8": 5e-3}
VOCAB = 2048


def run(backend, kv, *options):
    path = os.path.join(out, f"kv-{backend}-{kv}.f32")
    said = subprocess.run(["colibri-run", "--ids", "--temp", "0", "--ctx", str(prompt + tokens), "--backend", backend, "--kv-dtype", kv,
                           "--stats", "--json", *options, "--logits", path, model], input=text, capture_output=True, text=True)
    if said.returncode:
        sys.exit(f"{backend}, {kv}: {said.stderr.strip()[-300:]}")
    with open(path, "rb") as f:
        values = array.array("f", f.read())
    stats = json.loads(said.stderr[said.stderr.index("{"):said.stderr.rindex("}") + 1])
    return [values[i:i + VOCAB] for i in range(0, len(values), VOCAB)], stats["decode"]


def off(a, b):
    d = math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b)) / sum(y * y for y in b))
    return d if d == d else math.inf


model = os.path.join(models, "demo-f32.bin")
if not os.path.exists(model):
    subprocess.run(["colibri-convert", "-q", "--dtype", "f32", "examples/demo-model", "-o", model], check=True)
text = " ".join(str(1 + 37 * i % 2000) for i in range(prompt))
line, failed = [], []
for kv, bound in BOUND.items():
    theirs, _ = run("cpu", kv, "-n", "1")
    ours, _ = run("cuda", kv, "-n", "1")
    worst = statistics.median(off(a, b) for a, b in zip(ours, theirs))
    _, decode = run("cuda", kv, "-n", str(tokens))
    line.append(f"{kv} off by {worst:.1g}, {decode['tokens'] / max(decode['seconds'], 1e-9):.0f} tokens/s")
    if len(ours) != len(theirs) or not worst <= bound:
        failed.append(f"{kv}: off by {worst:.2g} in {len(ours)} rows, at most {bound} in {len(theirs)}")
print("; ".join(line))
if failed:
    sys.exit("; ".join(failed))
