#!/usr/bin/env python3
"""What curl does not do to a server: one trick a call, over a plain socket.
usage: serve_client.py PORT TRICK [ARGUMENT]...   prints what came of it, for colibri-serve.bats
"""
import json
import socket
import sys
import time

PORT = int(sys.argv[1])


def connect(small=False):
    s = socket.socket()
    if small:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.settimeout(30)
    s.connect(("127.0.0.1", PORT))
    return s


def post(body, path="/v1/completions", more="", length=None):
    n = len(body) if length is None else length
    return (f"POST {path} HTTP/1.1\r\nHost: localhost:{PORT}\r\n{more}Content-Length: {n}\r\n\r\n").encode() + body


def ask(**fields):
    return json.dumps({"prompt": "The capital of France is", "temperature": 0, **fields}).encode()


def read_all(s):
    got = b""
    try:
        while True:
            piece = s.recv(65536)
            if not piece:
                return got
            got += piece
    except (ConnectionResetError, socket.timeout):
        return got


def answer(s):
    """One answer with Content-Length: status and body."""
    got = b""
    while b"\r\n\r\n" not in got:
        piece = s.recv(65536)
        if not piece:
            return 0, b""
        got += piece
    head, body = got.split(b"\r\n\r\n", 1)
    lower = head.lower()
    n = int(lower.split(b"content-length:")[1].split(b"\r\n")[0]) if b"content-length:" in lower else 0
    while len(body) < n:
        body += s.recv(65536)
    answer.rest = body[n:]
    return int(head.split()[1]), body[:n]


def metric(name):
    s = connect()
    s.sendall(f"GET /metrics HTTP/1.1\r\nHost: localhost:{PORT}\r\nConnection: close\r\n\r\n".encode())
    for line in read_all(s).decode().splitlines():
        if line.startswith(name + " "):
            return float(line.split()[-1])
    return None


def until_idle(limit=20):
    """Whether nothing runs any more; how many passes were needed is not asserted in time."""
    for _ in range(limit * 20):
        if metric("colibri_choices_running") == 0 and metric("colibri_choices_waiting") == 0:
            return True
        time.sleep(0.05)
    return False


# -- tricks ----------------------------------------------------------------------------------------

def slow_header():
    """A header that never ends: the connection is closed."""
    s = connect()
    s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n")
    start = time.time()
    try:
        while time.time() - start < 20:
            s.sendall(b"X-A: b\r\n")
            s.settimeout(0.2)
            try:
                if s.recv(100) == b"":
                    break
            except socket.timeout:
                pass
        else:
            print("still open")
            return
    except (BrokenPipeError, ConnectionResetError):
        pass
    print("closed")


def slow_body():
    """A body that comes a byte at a time: 408."""
    s = connect()
    s.sendall(post(b"{", length=1000))
    s.settimeout(0.1)
    got = b""
    for _ in range(200):
        try:
            s.sendall(b" ")
            piece = s.recv(4096)
            if not piece:
                break
            got += piece
        except socket.timeout:
            continue
        except (BrokenPipeError, ConnectionResetError):
            break
    print(got.decode(errors="replace"))


def never_read():
    """A stream that nobody takes is cut, and the engine goes on without it."""
    s = connect(small=True)
    s.sendall(post(ask(stream=True, n=8, max_tokens=900, ignore_eos=True, logprobs=20, temperature=1, seed=1)))
    print("idle" if until_idle() else "busy")
    for _ in range(400):
        if metric("colibri_connections") == 1 and metric("colibri_requests_active") == 0:
            print("cut")
            return
        time.sleep(0.05)
    print("still open", metric("colibri_connections"), metric("colibri_requests_active"))
    s.close()


def leave(stream):
    """Goes away in the middle of an answer; or with `stream` half closes. On a busy machine the answer may be there
    before the client is gone: then again."""
    for _ in range(20):
        s = connect()
        s.sendall(post(ask(stream=stream == "stream", max_tokens=900, ignore_eos=True, n=8, temperature=1)))
        if stream == "half":
            s.shutdown(socket.SHUT_WR)
        elif stream == "stream":
            s.recv(100)
            s.close()
        else:
            time.sleep(0.05)
            s.close()
        idle = until_idle()
        if not idle or metric("colibri_cancelled_total"):
            break
    print("idle" if idle else "busy")
    print("cancelled" if metric("colibri_cancelled_total") else "finished")


def too_many(n):
    """More connections than there may be: those behind the limit get 503, and all works afterwards."""
    open_ones, refused = [], 0
    for _ in range(int(n)):
        s = connect()
        s.settimeout(0.1)
        open_ones.append(s)
    time.sleep(0.3)
    for s in open_ones:
        try:
            got = s.recv(4096)
            refused += got.startswith(b"HTTP/1.1 503 ") and b'"too_many_connections"' in got
        except socket.timeout:
            pass
        except ConnectionResetError:
            refused += 1
    print("refused", refused)
    for s in open_ones:
        s.close()
    time.sleep(0.2)
    s = connect()
    s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    print(answer(s)[0])


def pipeline():
    """Several requests at once on one connection: as many answers, in order."""
    s = connect()
    s.sendall(post(ask(max_tokens=1)) + post(b"{") + post(ask(max_tokens=2)) +
              b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    s.settimeout(10)
    rest = b""
    for _ in range(4):
        got = rest
        while True:
            if b"\r\n\r\n" in got:
                head, body = got.split(b"\r\n\r\n", 1)
                n = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                if len(body) >= n:
                    rest = body[n:]
                    break
            got += s.recv(65536)
        o = json.loads(body[:n])
        print(head.split()[1].decode(), o.get("usage", {}).get("completion_tokens", o.get("status", "error")))


def chunked(total):
    """A body without Content-Length, too long: 413."""
    s = connect()
    s.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
    left = int(total)
    try:
        while left > 0:
            n = min(left, 65536)
            s.sendall(b"%x\r\n" % n + b" " * n + b"\r\n")
            left -= n
        s.sendall(b"0\r\n\r\n")
    except (BrokenPipeError, ConnectionResetError):
        pass
    print(answer(s)[0])


def huge_body(total):
    """A body as long as it says, without waiting for leave: 413, and the client lives to read it."""
    s = connect()
    s.sendall(post(b"", length=int(total)))
    left = int(total)
    block = b" " * (1 << 20)
    try:
        while left > 0:
            s.sendall(block[:left])
            left -= len(block)
    except (BrokenPipeError, ConnectionResetError):
        pass
    print(answer(s)[0])


def garbage():
    """What is no HTTP at all; the server still answers others."""
    for rubbish in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\r\n\r\n\r\n", b"GET\r\n\r\n", b"\x00" * 2000,
                    b"POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\n", b"POST / HTTP/9.9\r\n\r\n",
                    b"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n",
                    b"GET " + b"/a" * 200000 + b" HTTP/1.1\r\n\r\n"):
        s = connect()
        s.settimeout(0.3)
        try:
            s.sendall(rubbish)
            s.shutdown(socket.SHUT_WR)
            s.recv(4096)
        except OSError:
            pass
        s.close()
    s = connect()
    s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    print(answer(s)[0])


def say(raw, end=False):
    """What comes back for these bytes until the server closes: its answers, as (status, code of the error)."""
    s = connect()
    try:
        s.sendall(raw)
        if end:
            s.shutdown(socket.SHUT_WR)
    except OSError:
        pass
    got, answers = read_all(s), []
    while got.startswith(b"HTTP/1.1 "):
        head, _, got = got.partition(b"\r\n\r\n")
        n = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        body, got = got[:n], got[n:]
        answers.append((int(head.split()[1]), json.loads(body).get("error", {}).get("code")))
    return answers + [("rest", got)] * bool(got)


GET = b"GET /health HTTP/1.1\r\nHost: x\r\n"


def not_http():
    """What libmicrohttpd would answer with HTML, or not at all, as the first thing on a connection."""
    post_to = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length:"
    for status, raw in (
            (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"), (400, b"\x00" * 100), (400, b"GET\r\n\r\n"),
            (400, b"GET /health\r\n\r\n"), (400, b"GET\t/health\tHTTP/1.1\r\n\r\n"), (400, b" /health HTTP/1.1\r\n\r\n"),
            (505, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), (505, b"GET /health HTTP/9.9\r\nHost: x\r\n\r\n"),
            (400, post_to + b" -5\r\n\r\n"), (400, post_to + b" +5\r\n\r\n"), (400, post_to + b" 0x5\r\n\r\n"),
            (400, post_to + b"\r\n\r\n"), (400, post_to + b" 5, 5\r\n\r\n"), (413, post_to + b" " + b"9" * 30 + b"\r\n\r\n"),
            (400, GET + b"no colon\r\n\r\n"), (400, GET + b"A: b\0c\r\n\r\n"), (400, GET + b"A\0: b\r\n\r\n"),
            (400, GET + b"A: b\r\n c\r\n\r\n"), (431, GET + b"A: b\r\n" * 3000 + b"\r\n"),
            (431, GET + b"A: " + b"b" * 200000 + b"\r\n\r\n"), (431, GET + b"Cookie: " + b"a=b;" * 3000 + b"\r\n\r\n"),
            (414, b"GET /health?" + b"a=b&" * 3000 + b" HTTP/1.1\r\nHost: x\r\n\r\n")):
        got = say(raw)
        if got != [(status, "bad_request")]:
            print(raw[:60], got)
    print("told")


def smuggle():
    """Headers that two servers may read in two ways: refused, and nothing behind them is read. Also when the
    connection has shown before that it speaks HTTP."""
    second = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    post_to = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
    for status, raw in (
            (400, post_to + b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
            (400, post_to + b"Content-Length: 0\r\nContent-Length: 6\r\n\r\n"),
            (400, post_to + b"Content-Length : 0\r\n\r\n"), (400, post_to + b"X Y: 0\r\n\r\n"),
            (501, post_to + b"Transfer-Encoding: gzip, chunked\r\n\r\n"), (501, post_to + b"Transfer-Encoding: xchunked\r\n\r\n"),
            (400, b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
            (400, b"GET /health HTTP/1.1\r\n\r\n"), (400, GET + b"Host: y\r\n\r\n"),
            (413, post_to + b"Content-Length: 18446744073709551615\r\n\r\n")):
        for before in (b"", second):
            got = say(before + raw + second)
            if [a[0] for a in got] != [200] * bool(before) + [status]:
                print(raw[:80], got)
    print("refused")


def end_in_body():
    """A client that stops in its header or body is not waited for, --read-timeout or not."""
    whole = post(b" " * 1000)
    for n in (0, 10, whole.index(b"\r\n\r\n") + 2, whole.index(b"\r\n\r\n") + 4, len(whole) - 5):
        say(whole[:n], end=True)
    for _ in range(100):
        if metric("colibri_connections") == 1:
            print("gone")
            return
        time.sleep(0.05)
    print("still there:", metric("colibri_connections"))


def device_lost():
    """The request that meets the failure, what /health says then, and a request whose body is still on its way."""
    late, health, first = connect(), connect(), connect()
    look = f"GET /health HTTP/1.1\r\nHost: localhost:{PORT}\r\n\r\n".encode()
    body = ask(max_tokens=4)
    late.sendall(post(b"", more="Expect: 100-continue\r\n", length=len(body)))
    got = b""
    while b"\r\n\r\n" not in got:
        got += late.recv(100)
    health.sendall(look)
    print(*answer(health))
    for s in (first, health, late):
        s.sendall(look if s is health else body if s is late else post(body))
        status, text = answer(s)
        said = json.loads(text)
        print(status, *(said["error"][k] for k in ("code", "message")) if "error" in said else said.values())


tricks = {f.__name__: f for f in (slow_header, slow_body, never_read, leave, too_many, pipeline, chunked, huge_body, garbage,
                                  not_http, smuggle, end_in_body, device_lost)}
tricks[sys.argv[2]](*sys.argv[3:])
