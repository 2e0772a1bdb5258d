#!/usr/bin/env python3
"""Measures Colibri beside llama.cpp on the same weights: what `make bench` runs.

Everything is made that is missing (the peer compiled from source, a random checkpoint of 3.5 billion parameters, the
files of both engines); then all take turns, round after round, in alternating order. Prints one table of medians,
spreads and ratios; a complete run also writes it into doc/performance.md and README.md. Ctrl-C stops; the next call
goes on there.
"""
import argparse
import fnmatch
import hashlib
import os
import sys
import time

import machine
import report
from engines import Colibri, Failed, IkLlama, LlamaCpp
from plan import CASES, COLIBRI, IK, LLAMA, tiny
from samples import Samples
from workshop import PEER, ROOT, Workshop, say

ROUNDS = 5  # a table of fewer is not written into the documentation


def arguments():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    ap.add_argument("--build", default="build", help="where Colibri was built (build)")
    ap.add_argument("--dir", help="where models and the peer are kept (BUILD/bench)")
    ap.add_argument("--rounds", type=int, default=ROUNDS, help=f"({ROUNDS})")
    ap.add_argument("--only", default="*", metavar="GLOB,...",
                    help="some cases:\n" + " ".join(c.name for c in CASES))
    ap.add_argument("--no-peer", action="store_true", help="Colibri alone; nothing is installed")
    ap.add_argument("--ik", metavar="DIR", help="also ik_llama.cpp, whose llama-bench is in DIR")
    ap.add_argument("--ik-flags", default=IkLlama.BEST, help=f"its settings ({IkLlama.BEST})")
    ap.add_argument("--peer-cmake", default="", help="how to compile the peer (for this processor)")
    ap.add_argument("--cpu", default="", help="lower Colibri's instruction set, e.g. avx2")
    ap.add_argument("--out", metavar="FILE", action="append",
                    help="write the tables into this file, whatever was run")
    ap.add_argument("--fresh", action="store_true", help="forget an interrupted run")
    ap.add_argument("--prepare", action="store_true", help="make what is missing, measure nothing")
    ap.add_argument("--tiny", action="store_true", help="a few tokens of the bundled model: a try")
    a = ap.parse_args()
    a.dir = a.dir or os.path.join(a.build, "bench")
    if a.rounds < 1:
        ap.error("--rounds must be 1 or more")
    a.cases = [tiny(c) if a.tiny else c for c in CASES
               if any(fnmatch.fnmatch(c.name, g) for g in a.only.split(","))]
    if not a.cases:
        ap.error(f"--only {a.only}: no such case")
    return a


def participants(a):
    return {COLIBRI} | ({LLAMA} if not a.no_peer else set()) | ({IK} if a.ik else set())


def prepare(a, shop):
    if not a.no_peer:
        shop.install(a.peer_cmake)
    if any(c.source == "random" for c in a.cases):
        shop.make_random(sys.executable if a.no_peer else shop.python())
    for source in ("demo", "random"):
        sides = [s for c, s in turns(a, 1) if c.source == source and c.kind != "convert"]
        shop.convert(source, sorted({s.model for s in sides if s.engine == COLIBRI}))
        shop.quantise(source, sorted({s.model for s in sides if s.engine != COLIBRI}))
    if any(c.kind == "quality" for c in a.cases):
        shop.convert("demo", ["f32"])


def identity(a, shop):
    """What must be the same for samples to stand in one table."""
    with open(shop.program("colibri-bench"), "rb") as f:
        program = hashlib.sha256(f.read()).hexdigest()
    return {"program": program, "cpu": a.cpu, "tiny": a.tiny, "peer": f"{PEER} {a.peer_cmake}",
            "ik": a.ik_flags if a.ik else None}


def turns(a, round_):
    """Who measures what in a round; places in a case alternate."""
    here = participants(a)
    for case in a.cases:
        if case.runs_in(round_):
            sides = [s for s in case.sides if s.engine in here]
            for side in sides if round_ % 2 else reversed(sides):
                yield case, side


def fresh_cache(a, shop):
    """Every engine brings its files into the page cache itself, in pages of the size it asks for."""
    for case, side in turns(a, 1):
        if side.engine == COLIBRI and case.kind != "convert":
            shop.evict(shop.converted(case.source, side.model))


def shown(figures):
    return "  ".join(f"{name} {figures[name]:.4g}" for name in figures
                     if name in ("prefill", "decode", "kl", "seconds", "read_per_s"))


def measure(a, shop, engines, samples):
    cores = len(os.sched_getaffinity(0))
    plan = [(r, case, side) for r in range(1, a.rounds + 1) for case, side in turns(a, r)]
    left = [t for t in plan if not samples.has(t[1], t[2], t[0])]
    if not left:  # complete: once more
        samples.forget({c.name for c in a.cases})
        left = plan
    elif len(left) < len(plan):
        say(f"going on: {len(plan) - len(left)} of {len(plan)} measurements are there")
    fresh_cache(a, shop)
    begin = time.monotonic()
    for i, (round_, case, side) in enumerate(left):
        figures = getattr(engines[side.engine], case.kind)(case, side, case.threads or cores)
        figures["version"] = engines[side.engine].version
        samples.add(case, side, round_, figures)
        passed = time.monotonic() - begin
        say(f"{passed / 60:5.1f} min, {100 * (i + 1) / len(left):3.0f} %  round {round_}/{a.rounds}  "
            f"{case.name:12} {str(side):18} {shown(figures)}")


def compare(a, shop):
    """Runs the rounds; the report of what there is, and whether that is all."""
    engines = {COLIBRI: Colibri(shop, a.cpu)}
    samples = Samples(shop.path("samples.jsonl"), identity(a, shop))
    if a.fresh:
        samples.forget({c.name for c in CASES})
    watch = machine.Watch()
    complete = False
    try:
        if not a.no_peer:
            engines[LLAMA] = LlamaCpp(shop)
        if a.ik:
            engines[IK] = IkLlama(shop, a.ik, a.ik_flags)
        say(f"load {watch.load()}" + ("" if watch.idle() else
                                      ": this machine is busy, so the figures mean little"))
        measure(a, shop, engines, samples)
        complete = True
    except KeyboardInterrupt:
        say("stopped; the same command goes on here")
    finally:
        if LLAMA in engines:
            engines[LLAMA].close()
    about = report.About(watch.describe(), samples.versions(), command(a), a.ik_flags)
    return report.Report(samples, about), complete


def command(a):
    words = ["make bench"] + [f"{name}={value}" for name, value in (
        ("ROUNDS", a.rounds if a.rounds != ROUNDS else ""), ("ONLY", a.only if a.only != "*" else ""),
        ("CPU", a.cpu), ("PEER_IK", "DIR" if a.ik else ""),
        ("PEER_CMAKE", f"'{a.peer_cmake}'" if a.peer_cmake else "")) if value]
    return " ".join(words)


def main():
    a = arguments()
    shop = Workshop(a.build, a.dir, a.tiny)
    prepare(a, shop)
    if a.prepare:
        return 0
    result, complete = compare(a, shop)
    print(result.text())
    whole = complete and a.only == "*" and a.rounds >= ROUNDS and not (a.no_peer or a.tiny or a.cpu)
    for path in a.out or ([os.path.join(ROOT, "doc", "performance.md"),
                           os.path.join(ROOT, "README.md")] if whole else []):
        result.write(path)
        say(f"written: {os.path.relpath(path)}")
    return 0 if complete else 130


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Failed, OSError) as e:
        sys.exit(f"bench: {e}")
    except KeyboardInterrupt:
        sys.exit(130)
