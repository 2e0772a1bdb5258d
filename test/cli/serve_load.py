#!/usr/bin/env python3
"""Load on a server: many requests of random lengths side by side, a third of them left by the client at a random moment, a
third with stop texts. Every answer that was waited for must be, byte for byte, what the same request gets alone.
usage: serve_load.py URL TEXTS REQUESTS [CLIENTS [SEED]]   TEXTS: a file, prompts are beginnings of its lines
"""
import http.client
import json
import random
import sys
import threading
import time
import urllib.parse

URL = urllib.parse.urlparse(sys.argv[1])
LINES = [l.strip() for l in open(sys.argv[2], encoding="utf-8") if l.strip()]
TOTAL = int(sys.argv[3])
CLIENTS = int(sys.argv[4]) if len(sys.argv) > 4 else 16
SEED = int(sys.argv[5]) if len(sys.argv) > 5 else 1
STOPS = [[" the"], [".", "\n"], ["and", " of"], ["qqq"]]


def make(i):
    r = random.Random(SEED * 1000003 + i)
    q = {"prompt": r.choice(LINES)[:r.randint(1, 200)], "max_tokens": r.randint(1, 60), "seed": r.randint(0, 1 << 40),
         "temperature": r.choice([0, 0, 0.7, 1.2]), "n": r.choice([1, 1, 1, 2]), "stream": r.random() < 0.5}
    kind = i % 3
    if kind == 1:
        q["stop"] = r.choice(STOPS)
    if kind == 2:  # left; long enough that there is something to leave
        q.update(max_tokens=400, ignore_eos=True)
    return q, kind == 2, r.random() * 0.05


def texts(body, stream):
    """[(text, finish)] of the choices."""
    if not stream:
        return [(c["text"], c["finish_reason"]) for c in json.loads(body)["choices"]]
    out = {}
    assert body.endswith(b"data: [DONE]\n\n"), body[-200:]
    for event in body.decode().split("\n\n"):
        if event.startswith("data: {"):
            for c in json.loads(event[6:])["choices"]:
                text, finish = out.get(c["index"], ("", None))
                out[c["index"]] = (text + c["text"], c["finish_reason"] or finish)
    return [out[i] for i in sorted(out)]


def connect():
    return http.client.HTTPConnection(URL.hostname, URL.port, timeout=300)


def ask(c, q):
    c.request("POST", "/v1/completions", json.dumps(q))
    r = c.getresponse()
    body = r.read()
    assert r.status == 200, (r.status, body, q)
    return texts(body, q["stream"])


def leave(q, delay):
    c = connect()
    c.request("POST", "/v1/completions", json.dumps(q))
    time.sleep(delay)
    c.close()


def metric(name):
    c = connect()
    c.request("GET", "/metrics")
    for line in c.getresponse().read().decode().splitlines():
        if line.startswith(name + " "):
            return float(line.split()[-1])
    raise KeyError(name)


answers, failures, numbers = {}, [], iter(range(TOTAL))
lock = threading.Lock()


def client():
    c = connect()
    while True:
        with lock:
            i = next(numbers, None)
        if i is None:
            return
        q, leaves, delay = make(i)
        try:
            if leaves:
                leave(q, delay)
            else:
                answers[i] = ask(c, q)
        except Exception as e:  # noqa: whatever it was, the request is lost
            failures.append((i, repr(e)))
            c = connect()


threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
for t in threads:
    t.start()
for t in threads:
    t.join()
assert not failures, failures[:5]
deadline = time.time() + 60
while metric("colibri_choices_running") + metric("colibri_choices_waiting") + metric("colibri_requests_active") > 0:
    assert time.time() < deadline, "the engine is not idle"
passes = metric("colibri_passes_total")
time.sleep(0.2)
assert metric("colibri_passes_total") == passes, "passes without requests"
c = connect()
wrong = [i for i in sorted(answers) if ask(c, make(i)[0]) != answers[i]]
assert not wrong, f"{len(wrong)} answers differ, the first is request {wrong[0]}: {answers[wrong[0]]} {ask(c, make(wrong[0])[0])}"
print(f"{TOTAL} requests, {len(answers)} answers, all as alone; {metric('colibri_cancelled_total'):.0f} left")
