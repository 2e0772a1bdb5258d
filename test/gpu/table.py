#!/usr/bin/env python3
"""Rows of check.sh's table for one model: speed, and every stage beside the ceilings of the device.

usage: table.py NAME RUN_LOG BENCH_LOG GB_PER_S TFLOPS. RUN_LOG holds what colibri-run --stats --json said, BENCH_LOG
what colibri-bench --json did. A stage's floor is the larger of its bytes over the bandwidth and its operations over the
peak (0 of both: they are not known); stages are timed one by one, so their sum is larger than a step, which is one graph.
"""
import json, sys


def share(floor, took):
    return f"the floor is {1e3 * floor:.3f} ({100 * floor / max(took, 1e-9):.0f} %)" if floor else "the floor is not known"


name, run_log, bench_log = sys.argv[1:4]
bandwidth, peak = (float(x) for x in sys.argv[4:6])


def object_in(path):
    """The JSON object in a log that may hold other lines."""
    text = open(path).read()
    return json.loads(text[text.index("{"):text.rindex("}") + 1])


def floor_of(n_byte, flop):
    return max(n_byte / bandwidth / 1e9, flop / peak / 1e12) if bandwidth and peak else 0


run, bench = object_in(run_log), object_in(bench_log)["runs"][0]
for kind in ("prefill", "decode"):
    part, took = bench[kind], run[kind]
    steps = part["steps"] if kind == "decode" else 1
    total_bytes = sum(s["bytes"] for s in part["stages"]) / steps
    total_flop = 2 * sum(s["macs"] for s in part["stages"]) / steps
    floor = floor_of(total_bytes, total_flop)
    step = took["seconds"] / max(took["tokens"], 1) * (1 if kind == "decode" else part["tokens"])
    print(f"{name + ' ' + kind:<34} {took['tokens'] / max(took['seconds'], 1e-9):8.1f} tokens/s, "
          f"{1e3 * step:.3f} ms of which {share(floor, step)}")
    for s in part["stages"]:
        floor = floor_of(s["bytes"], 2 * s["macs"]) / steps
        if s["seconds"] > 0:
            print(f"  {s['name']:<32} {1e6 * s['seconds'] / steps:8.1f} us, floor {1e6 * floor:.1f} us, "
                  f"{s['bytes'] / s['seconds'] / 1e9:.0f} GB/s, {2 * s['macs'] / s['seconds'] / 1e12:.2f} TFLOPS")
