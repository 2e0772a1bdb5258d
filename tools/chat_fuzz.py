#!/usr/bin/env python3
"""Compares `colibri-inspect --render-chat` with Jinja on templates made at random.

usage: chat_fuzz.py [--build build] [--seed S] [--show N] [-n COUNT]

Needs the package jinja2 (3.1.6), set up the way transformers sets it up. Every template is rendered with several
conversations. The same text, or an error on both sides, is agreement; a template that Colibri refuses by name ("not
supported", ...) is counted apart. Exit status 1 when a text differs, or when only one side fails.
"""
import argparse
import collections
import datetime
import json
import os
import random
import subprocess
import sys
import tempfile

import jinja2
import jinja2.ext
import jinja2.sandbox

NOW = datetime.datetime(2025, 6, 15, 12, 30, 45)
REFUSED = ("not supported", "beyond 64 bits", "beyond 53 bits")


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_whole"), [], [], body).set_lineno(line)

    def _whole(self, caller):
        return caller()


class Namespace(jinja2.utils.Namespace):
    def __init__(*args, **kwargs):
        self, names = args[0], dict(*args[1:], **kwargs)
        for name in names:
            Namespace.check(name)
        jinja2.utils.Namespace.__init__(self, names)

    def __setitem__(self, name, value):
        Namespace.check(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def check(name):
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(name)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = lambda x, ensure_ascii=False, indent=None, separators=None, sort_keys=False: json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    env.globals["namespace"] = Namespace
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: NOW.strftime(f)
    return env


# -- what the templates see --------------------------------------------------------------------------------------

MESSAGES = [
    [{"role": "user", "content": "Hello, world"}],
    [{"role": "system", "content": " be  kind\n"}, {"role": "user", "content": "1+1?"},
     {"role": "assistant", "content": "<think>hm</think>2", "tool_calls": [
         {"type": "function", "id": "call00001", "function": {"name": "add", "arguments": {"a": 1, "b": [2.5, None]}}}]},
     {"role": "tool", "content": "{\"x\": 1e-7}", "name": "add"}],
    [{"role": "user", "content": [{"type": "text", "text": "Größe ÄÖ"}, {"type": "image"}]},
     {"role": "assistant", "content": ""}, {"role": "user", "content": "it's \"quoted\" \\ 日本語\t\u200b 😀"}],
]
VALUES = {
    "s": "Hello World", "t": "a,b,,c", "e": "", "u": "  Zürich ist schön\n", "q": "it's",
    "i": 7, "z": 0, "n": -3, "big": 123456789012, "f": 2.5, "g": 1e16, "h": 0.1, "tiny": 1.5e-7,
    "yes": True, "no": False, "nil": None,
    "l": [3, 1, 2], "ls": ["b", "A", "c"], "le": [], "mix": [1, "two", None, 2.5, [1, 2], {"k": "v"}],
    "d": {"name": "x", "items": [1, 2], "b": {"c": "deep"}, "type": "object"}, "de": {},
    "lod": [{"name": "p", "n": 2, "ok": True}, {"name": "q", "n": 1}, {"name": "P", "n": 3, "ok": False}],
}
STRINGS = ["s", "t", "e", "u", "q", "'lit'", '"a\\nb"', "'<|x|>'", "messages[0].role", "d.name", "(i|string)", "'x' ~ i",
           "messages[-1]['content']"]
INTS = ["i", "z", "n", "big", "3", "0", "-2", "(l|length)", "s|length", "1_000"]
FLOATS = ["f", "h", "1.5", "2e3", "g", "tiny"]
LISTS = ["l", "ls", "le", "mix", "lod", "[1, 2, 3]", "['a', \"b\"]", "(1, 2)", "messages", "range(4)|list", "t.split(',')",
         "d.keys()|list", "d|items|list"]
DICTS = ["d", "de", "{'a': 1, 'b': [True, none]}", "lod[0]", "messages[0]", "{}"]
ANY = ["nil", "yes", "no", "missing", "d.missing", "missing.x", "none", "true"]
CHARS = ["'l'", "'H'", "' '", "','", "'\\n'", "'He'", "''", "'xyz'"]


class Maker:
    def __init__(self, rng):
        self.rng = rng
        self.names = []

    def one(self, *options):
        return self.rng.choice(options)

    def string(self, depth):
        r = self.one
        if depth <= 0 or self.rng.random() < 0.2:
            return r(*STRINGS, *[n for n in self.names])
        s = self.string(depth - 1)
        c = r(*CHARS)
        return r(
            lambda: f"({s} + {self.string(depth - 1)})",
            lambda: f"({s} ~ {self.any(depth - 1)})",
            lambda: f"({s}).{r('upper', 'lower', 'strip', 'lstrip', 'rstrip', 'title', 'capitalize')}()",
            lambda: f"({s}).{r('strip', 'lstrip', 'rstrip')}({c})",
            lambda: f"({s})|{r('upper', 'lower', 'trim', 'title', 'capitalize', 'string', 'e', 'safe', 'reverse')}",
            lambda: f"({s})|trim({c})",
            lambda: f"({s}).replace({c}, {self.string(0)})",
            lambda: f"({s})|replace({c}, {r(*CHARS)}{r('', ', 1')})",
            lambda: f"({s})[{self.slice()}]",
            lambda: f"({s}).split({r('', c)}){r('[0]', '[-1]', '[1]', '|first', '|last')}",
            lambda: f"({s}).{r('rsplit', 'split')}({c}, {r(0, 1, 2)}){r('[0]', '[-1]')}",
            lambda: f"({s}).{r('partition', 'rpartition')}({c})[{r(0, 1, 2)}]",
            lambda: f"({s}).{r('removeprefix', 'removesuffix')}({c})",
            lambda: f"({s}).{r('ljust', 'rjust', 'zfill')}({r(0, 3, 15)})",
            lambda: f"({self.list(depth - 1)})|join({r('', c, 'attribute=' + chr(39) + 'name' + chr(39))})",
            lambda: f"({self.any(depth - 1)})|tojson{r('', '(indent=2)', '(indent=0)', '(ensure_ascii=true)')}",
            lambda: f"({self.any(depth - 1)})|tojson(separators=(',', ':'), sort_keys={r('true', 'false')})",
            lambda: f"({self.any(depth - 1)})|string",
            lambda: f"({s})|indent({r(2, 4, 'width=1', '2, true', '2, false, true')})",
            lambda: f"({s})|center({r(4, 20)})",
            lambda: f"('%s|%5s|%-4s' % ({s}, {self.any(0)}, {self.int(0)}))",
            lambda: f"('%.2f %05d' % ({self.number(depth - 1)}, {self.int(0)}))",
            lambda: f"('{{}}-{{}}'.format({s}, {self.any(0)}))",
            lambda: f"('a%sb'|format({self.any(0)}))",
            lambda: f"({s} if {self.any(depth - 1)} else {self.string(depth - 1)})",
            lambda: f"({self.any(depth - 1)}|default({s}{r('', ', true')}))",
            lambda: f"({self.list(depth - 1)})|map('string')|join('/')",
            lambda: f"strftime_now('{r('%Y-%m-%d', '%d %b %Y', '%B %d, %Y', '%H:%M:%S', '%A %j %I%p %y')}')",
        )()

    def slice(self):
        b = lambda: self.one("", "1", "-1", "2", "-3", "100", "i")
        return self.one("0", "-1", "99", f"{b()}:{b()}", f"{b()}:{b()}", f"{b()}:{b()}:{self.one('', '2', '-1', '-2')}")

    def int(self, depth):
        r = self.one
        if depth <= 0:
            return r(*INTS)
        return r(
            lambda: f"({self.int(depth - 1)} {r('+', '-', '*', '//', '%')} {self.int(depth - 1)})",
            lambda: f"({self.any(depth - 1)})|length",
            lambda: f"({self.any(depth - 1)})|int{r('', '(5)')}",
            lambda: f"({self.string(depth - 1)}).{r('find', 'rfind', 'count')}({r(*CHARS)})",
            lambda: f"(-{self.int(depth - 1)})",
            lambda: f"({self.int(depth - 1)})|abs",
            lambda: f"({r(2, 3, 'n')} ** {r(0, 1, 5)})",
            lambda: f"({self.list(depth - 1)}).{r('index', 'count')}({self.any(0)})",
        )()

    def number(self, depth):
        r = self.one
        if depth <= 0 or self.rng.random() < 0.3:
            return r(*FLOATS, *INTS)
        return r(
            lambda: f"({self.number(depth - 1)} {r('+', '-', '*', '/', '//', '%')} {self.number(depth - 1)})",
            lambda: f"({self.number(depth - 1)})|round{r('', '(1)', '(2)', chr(40) + '1, ' + chr(39) + 'floor' + chr(39) + ')')}",
            lambda: f"({self.any(depth - 1)})|float",
            lambda: f"({self.list(depth - 1)})|{r('sum', 'min', 'max')}",
        )()

    def list(self, depth):
        r = self.one
        if depth <= 0 or self.rng.random() < 0.2:
            return r(*LISTS)
        x = self.list(depth - 1)
        return r(
            lambda: f"({x})[{self.slice()}]",
            lambda: f"({x} + {self.list(depth - 1)})",
            lambda: f"({x})|{r('list', 'reverse|list', 'sort', 'unique|list', 'batch(2)|list', 'slice(2)|list', 'reverse')}",
            lambda: f"({x})|sort({r('reverse=true', 'case_sensitive=true', 'attribute=' + chr(39) + 'n' + chr(39))})",
            lambda: f"({x})|map({r(repr('upper'), repr('string'), repr('length'), 'attribute=' + repr('name'))})|list",
            lambda: f"({x})|{r('select', 'reject')}{r('', '(' + repr('string') + ')', '(' + repr('defined') + ')')}|list",
            lambda: f"({x})|{r('selectattr', 'rejectattr')}({r(repr('ok'), repr('name') + ', ' + repr('equalto') + ', ' + repr('p'))})|list",
            lambda: f"({x})|selectattr('n', '{r('gt', 'lt', 'ge', 'odd', 'even', 'defined')}'{r('', ', 1')})|list",
            lambda: f"({self.string(depth - 1)}).split({r('', *CHARS)})",
            lambda: f"({self.string(depth - 1)})|list",
            lambda: f"({self.string(depth - 1)}).splitlines({r('', 'true')})",
            lambda: f"({self.dict(depth - 1)}).{r('keys', 'values', 'items')}()|list",
            lambda: f"({self.dict(depth - 1)})|{r('items|list', 'dictsort', 'list', 'dictsort(reverse=true)', 'dictsort(by=' + repr('value') + ')')}",
            lambda: f"range({self.int(0)}{r('', ', ' + self.int(0), ', 9, 2')})|list",
            lambda: f"[{self.any(depth - 1)}, {self.any(depth - 1)}]",
            lambda: f"({x} * {r(0, 2)})",
        )()

    def dict(self, depth):
        r = self.one
        if depth <= 0:
            return r(*DICTS)
        return r(
            lambda: f"{{'k': {self.any(depth - 1)}, {r(repr('m'), '1', 'i', 'nil')}: {self.any(depth - 1)}}}",
            lambda: f"dict({r('', self.dict(depth - 1) + ', ')}a={self.any(depth - 1)})",
            lambda: f"({self.list(depth - 1)})[{r(0, -1)}]",
            lambda: f"({self.dict(depth - 1)}).copy()",
        )()

    def bool(self, depth):
        r = self.one
        a = lambda: self.any(depth - 1)
        return r(
            lambda: f"({a()} {r('==', '!=')} {a()})",
            lambda: f"({self.number(depth - 1)} {r('<', '<=', '>', '>=')} {self.number(depth - 1)})",
            lambda: f"({self.int(0)} < {self.int(0)} <= {self.int(0)})",
            lambda: f"({self.string(depth - 1)} {r('<', 'in', 'not in')} {self.string(depth - 1)})",
            lambda: f"({a()} {r('in', 'not in')} {r(self.list, self.dict)(depth - 1)})",
            lambda: f"({a()} {r('and', 'or')} {a()})",
            lambda: f"(not {a()})",
            lambda: f"({a()} is {r('', 'not ')}{r('defined', 'undefined', 'none', 'string', 'number', 'mapping', 'iterable')})",
            lambda: f"({a()} is {r('sequence', 'boolean', 'integer', 'float', 'true', 'false', 'callable', 'upper', 'lower')})",
            lambda: f"({self.int(depth - 1)} is {r('odd', 'even', 'divisibleby 3', 'divisibleby(2)')})",
            lambda: f"({a()} is {r('eq', 'ne', 'equalto', 'sameas', 'in')} {r('(' + a() + ')', self.list(0) if depth else 'l')})",
            lambda: f"({self.string(depth - 1)}).{r('startswith', 'endswith')}({r(*CHARS)})",
            lambda: f"({self.string(depth - 1)}).{r('isdigit', 'isalpha', 'isalnum', 'isspace', 'isupper', 'islower')}()",
        )()

    def any(self, depth):
        r = self.one
        if depth <= 0:
            return r(*STRINGS, *INTS, *FLOATS, *LISTS, *DICTS, *ANY, *self.names)
        return r(
            lambda: self.string(depth),
            lambda: self.int(depth),
            lambda: self.number(depth),
            lambda: self.list(depth),
            lambda: self.dict(depth),
            lambda: self.bool(depth),
            lambda: r(*ANY),
            lambda: f"({self.list(depth - 1)})|{r('first', 'last')}",
            lambda: f"({self.dict(depth - 1)}).get({r(repr('k'), repr('name'), 'i')}{r('', ', 5')})",
            lambda: f"({self.any(depth - 1)}){r('.name', '.x', '[0]', '[' + chr(39) + 'name' + chr(39) + ']', '.b.c', '.0')}",
        )()

    # -- statements

    def tag(self, text):
        return "{%" + self.one("", "-", "", "+") + " " + text + " " + self.one("", "-", "", "+") + "%}"

    def space(self):
        return self.one("", " ", "\n", "\n  ", "text", " \n\n ", "x\n", "\t", "  y  ")

    def show(self, depth):
        return "{{" + self.one("", "-") + " " + self.any(depth) + " " + self.one("", "-") + "}}"

    def statement(self, depth, loop=False):
        r, t = self.one, self.tag
        if depth <= 0:
            return self.show(self.rng.randint(0, 3))
        inner = lambda l=loop: self.body(depth - 1, l)
        name = r("v1", "v2", "v3")
        known = list(self.names)

        def scoped(make):
            out = make()
            self.names = list(known)
            return out

        def assign():
            out = t(f"set {name} = {self.any(2)}")
            self.names.append(name)
            return out

        def for_loop():
            over = self.list(2)
            cond = r("", "", f" if {self.bool(1)}")
            self.names += ["x"]
            body = inner(True)
            extra = r("", "", t("else") + self.body(depth - 1))
            return t(f"for x in {over}{cond}") + body + extra + t("endfor")

        def pairs():
            self.names += ["k", "v"]
            return t(f"for k, v in {self.dict(1)}{r('|items', '.items()')}") + inner(True) + t("endfor")

        def macro():
            m = r("mac", "mac2")
            self.names += ["p"]
            body = self.body(depth - 1)
            self.names = list(known)
            call = "{{ " + f"{m}({self.any(1)}{r('', ', q=2')})" + r("", "|upper", "|trim") + " }}"
            return t(f"macro {m}(p, q={self.any(0)})") + body + "{{ q }}" + t("endmacro") + call

        options = [
            assign, assign,
            lambda: scoped(lambda: t(f"if {self.any(2)}") + inner() + t("endif")),
            lambda: scoped(lambda: t(f"if {self.bool(2)}") + inner() + t(f"elif {self.any(1)}") + inner() + t("else") + inner()
                           + t("endif")),
            lambda: scoped(for_loop), lambda: scoped(for_loop), lambda: scoped(pairs), lambda: scoped(macro),
            lambda: t("set ns = namespace(a=1, b='x')") + t(f"set ns.a = {self.any(1)}") + "{{ ns.a }}{{ ns.zz }}",
            lambda: scoped(lambda: t(f"set {name}") + inner(False) + t("endset") + "{{ " + name + " }}"),
            lambda: scoped(lambda: t(f"set {name} | {r('upper', 'trim', 'length')}") + inner(False) + t("endset") + "{{ " + name + " }}"),
            lambda: scoped(lambda: t(f"filter {r('upper', 'trim', 'lower|title', 'indent(2)')}") + inner(False) + t("endfilter")),
            lambda: scoped(lambda: t(f"with w = {self.any(1)}") + "{{ w }}" + inner(False) + t("endwith")),
            lambda: scoped(lambda: t("generation") + inner(False) + t("endgeneration")),
            lambda: t("raw") + "{{ not }} {% this %}" + t("endraw"),
            lambda: "{#" + r("", "-", "+") + " a {{ comment }} " + r("", "-", "+") + "#}",
            lambda: t("macro w()") + "<{{ caller() }}>" + t("endmacro") + t("call w()") + self.show(1) + t("endcall"),
            lambda: self.show(3),
        ]
        if loop:
            options += [
                lambda: "{{ loop." + r("index", "index0", "first", "last", "length", "revindex", "revindex0", "depth") + " }}",
                lambda: "{{ loop.cycle('a', 'b') }}{{ loop.previtem }}{{ loop.nextitem is defined }}",
                lambda: t(f"if {self.bool(1)}") + t(r("break", "continue")) + t("endif"),
                lambda: "{{ loop.changed(x|string) if x is defined }}",
            ]
        return r(*options)()

    def body(self, depth, loop=False):
        return "".join(self.space() + self.statement(depth, loop) for _ in range(self.rng.randint(1, 3))) + self.space()


# -- comparing ---------------------------------------------------------------------------------------------------

def reference(template, row):
    try:
        values = {**VALUES, "messages": row["messages"], "tools": None, "documents": None,
                  "add_generation_prompt": True, "bos_token": "<s>"}
        return template.render(**values), None
    except RecursionError:
        return None, "recursion"
    except Exception as e:  # whatever Python raises is a failure of the template
        return None, f"{type(e).__name__}: {e}"


def rows():
    for messages in MESSAGES:
        yield {"messages": messages, "add_generation_prompt": True, "kwargs": VALUES, "vars": {"bos_token": "<s>"},
               "now": NOW.isoformat()}


def ours(inspect, path, lines):
    p = subprocess.run([inspect, "--render-chat", path], input=lines, capture_output=True, text=True, timeout=120)
    out = [json.loads(x) for x in p.stdout.splitlines()]
    if p.returncode < 0 or p.returncode not in (0, 3):
        raise SystemExit(f"{path}: exit status {p.returncode}: {p.stderr[-2000:]}")
    return out, p.stderr.strip()


def main():
    ap = argparse.ArgumentParser(usage=__doc__)
    ap.add_argument("--build", default="build")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--show", type=int, default=10)
    ap.add_argument("-n", type=int, default=2000)
    args = ap.parse_args()
    inspect = os.path.join(args.build, "bin/colibri-inspect")
    env, count, why = environment(), collections.Counter(), collections.Counter()
    lines = "".join(json.dumps(r) + "\n" for r in rows())
    folder = tempfile.mkdtemp()
    path = os.path.join(folder, "template.jinja")
    for i in range(args.n):
        source = Maker(random.Random(args.seed * 1000003 + i)).body(random.Random(i).randint(1, 3))
        with open(path, "w", encoding="utf-8", newline="") as f:
            f.write(source)
        try:
            template = env.from_string(source)
        except jinja2.exceptions.TemplateSyntaxError as e:
            template, broken = None, str(e)
        got, message = ours(inspect, path, lines)
        for k, row in enumerate(rows()):
            text, error = reference(template, row) if template else (None, broken)
            mine = got[k] if k < len(got) else {"error": message}
            problem = mine.get("error", "")
            if any(w in problem for w in REFUSED):
                count["refused"] += 1
                why[problem.split(": ")[-1]] += 1
            elif (text is None) != ("text" not in mine) or (text is not None and text != mine["text"]):
                count["different"] += 1
                if count["different"] <= args.show:
                    print(f"--- template {i}, conversation {k}\n{source}\n  reference: {text if text is not None else error!r}\n"
                          f"  colibri:   {mine.get('text', problem)!r}")
            else:
                count["same text" if text is not None else "both fail"] += 1
    os.remove(path)
    os.rmdir(folder)
    print(dict(count))
    for reason, n in why.most_common(8):
        print(f"  refused {n:6} {reason}")
    return count["different"] > 0


if __name__ == "__main__":
    sys.exit(main())
