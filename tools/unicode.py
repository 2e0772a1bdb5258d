#!/usr/bin/env python3
"""Writes lib/token/unicode_tables.c: what the tokenizer knows about characters.

usage: tools/unicode.py > lib/token/unicode_tables.c

Run by hand when the reference moves; the result is committed. It wants exactly these packages from PyPI:

    python3 -m venv v && v/bin/pip install tokenizers==0.23.3 regex==2024.11.6 unicodedata2==16.0.0

Classes are Unicode 16.0 (general category from unicodedata2, the rest from regex), which is what the reference's
regular expressions use. Normalisation, lower case and "is numeric" come from libraries of the reference that
are pinned to other versions (9.0 and 17.0), so these are not taken from a standard but asked of the reference itself,
one code point after another. doc/tokenizer.md says where that differs from Unicode 16.0.
"""
import sys
import textwrap

import regex
import tokenizers
import unicodedata2 as ucd
from tokenizers import normalizers, pre_tokenizers

assert (ucd.unidata_version, tokenizers.__version__) == ("16.0.0", "0.23.3")
POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co Cn".split()
SPACE, WORD, HAN = 0x20, 0x40, 0x80
NFC, NFD, NFKC, NFKD = (getattr(normalizers, n)().normalize_str for n in ("NFC", "NFD", "NFKC", "NFKD"))
out = sys.stdout


def rows(items):
    """Items separated by spaces in lines of at most 100 columns."""
    out.write(textwrap.fill(" ".join(items), 100, initial_indent="    ", subsequent_indent="    ",
                            break_long_words=False, break_on_hyphens=False) + "\n")


def array(kind, name, values):
    values = list(values)
    out.write(f"const {kind} {name}[{len(values)}] = {{\n")
    rows(f"{v}," for v in values)
    out.write("};\n\n")


def tuples(kind, name, values):
    width = "" if kind.startswith("struct") else f"[{len(values[0])}]"
    out.write(f"const {kind} {name}[{len(values)}]{width} = {{\n")
    rows("{" + ",".join(map(str, v)) + "}," for v in values)
    out.write("};\n\n")


def planes(name, points):
    """Where the code points of each plane begin; only planes 0 to 2 have any."""
    assert max(points) < 0x30000
    array("uint16_t", f"{name}_plane", [sum(c >> 16 < p for c in points) for p in range(4)])


def distinct(values, size):
    """Cuts values into blocks; the number of each block, and the distinct blocks."""
    blocks, index = {}, []
    for i in range(0, len(values), size):
        index.append(blocks.setdefault(tuple(values[i:i + size]), len(blocks)))
    return index, list(blocks)


def three_stage(name, values, mid, low):
    """values[c] is block[mid[top[c >> (mid + low)]][c >> low & ...]][c & ...], in blocks of 2^mid and 2^low."""
    index, blocks = distinct(values, 1 << low)
    top, mids = distinct(index, 1 << mid)
    assert len(mids) <= 256
    array("uint8_t", f"{name}_top", top)
    array("uint8_t" if len(blocks) <= 256 else "uint16_t", f"{name}_mid", [v for m in mids for v in m])
    array("uint8_t", f"{name}_block", [v for b in blocks for v in b])


def classes():
    table = [CATEGORIES.index(ucd.category(chr(c))) for c in range(0x110000)]
    for bit, pattern in ((SPACE, r"\p{White_Space}"), (HAN, r"\p{Han}"),
                         (WORD, r"[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}]")):
        match = regex.compile(pattern, regex.V1).match
        for c in POINTS:
            if match(chr(c)):
                table[c] |= bit
    three_stage("clb_uc_class", table, 5, 4)


def numeric():
    """Code points that the reference's Digits splits and that Unicode 16.0 does not call numbers."""
    digits = pre_tokenizers.Digits(individual_digits=True)
    extra = [c for c in POINTS if ucd.category(chr(c))[0] != "N" and len(digits.pre_tokenize_str(f"a{chr(c)}a")) == 3]
    lost = [c for c in POINTS if ucd.category(chr(c))[0] == "N" and len(digits.pre_tokenize_str(f"a{chr(c)}a")) != 3]
    assert not lost
    array("uint32_t", "clb_uc_numeric_extra", extra)


def combining(c):
    """The class by which the reference reorders c; it knows no marks that are younger than Unicode 9.0."""
    ccc = ucd.combining(chr(c))
    moved = NFD("a\u0345" + chr(c)) != "a\u0345" + chr(c) if ccc < 240 else NFD("a" + chr(c) + "\u0334")[1] == "\u0334"
    return ccc if ccc and moved else 0


def normalisation():
    hangul = range(0xAC00, 0xAC00 + 11172)
    ccc = {c: combining(c) for c in POINTS if ucd.combining(chr(c))}
    classes_used = sorted(set(ccc.values()) | {0})
    assert len(classes_used) <= 64
    canonical = {c: NFD(chr(c)) for c in POINTS if c not in hangul and NFD(chr(c)) != chr(c)}
    compat = {c: NFKD(chr(c)) for c in POINTS if c not in hangul and NFKD(chr(c)) != NFD(chr(c))}
    pairs = {}
    for c in canonical:
        step = ucd.decomposition(chr(c)).split()
        if len(step) == 2:
            a, b = (int(x, 16) for x in step)
            if NFC(chr(a) + chr(b)) == chr(c):
                pairs[a, b] = c
    second = {b for _, b in pairs} | set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))
    table = [0] * 0x110000
    for c in POINTS:
        v = classes_used.index(ccc.get(c, 0))
        if NFC(chr(c)) != chr(c) or c in second:
            v |= 0x40
        if NFKC(chr(c)) != chr(c) or c in second:
            v |= 0x80
        table[c] = v
    three_stage("clb_uc_norm", table, 6, 4)
    array("uint8_t", "clb_uc_ccc", classes_used)
    decompositions("clb_uc_canonical", canonical)
    decompositions("clb_uc_compat", compat)
    assert all(a >> 16 == b >> 16 == c >> 16 for (a, b), c in pairs.items())
    planes("clb_uc_pairs", [a for a, _ in pairs])
    tuples("uint16_t", "clb_uc_pairs", [(a & 0xFFFF, b & 0xFFFF, c & 0xFFFF) for (a, b), c in sorted(pairs.items())])


def decompositions(name, table):
    """Low halves of the sorted code points, where the full decomposition (UTF-8) of every 16th starts, how many bytes
    each has, and these bytes."""
    text, at = b"", []
    for c in sorted(table):
        at.append(len(text))
        text += table[c].encode()
    at.append(len(text))
    assert len(text) < 65536
    lengths = [b - a for a, b in zip(at, at[1:])]
    planes(name, table)
    array("uint16_t", name, [c & 0xFFFF for c in sorted(table)])
    array("uint16_t", f"{name}_at", at[::16])
    array("uint8_t", f"{name}_bytes", lengths)
    array("uint8_t", f"{name}_text", text)


def lower_case():
    lower = normalizers.Lowercase().normalize_str
    table = {c: lower(chr(c)) for c in POINTS if lower(chr(c)) != chr(c)}
    assert [c for c, s in table.items() if len(s) != 1] == [0x130]
    tuples("struct clb_uc_range", "clb_uc_lower", ranges({c: ord(s) for c, s in table.items() if len(s) == 1}))


def ranges(table):
    """(first, what is added, how many, in steps of 1 or 2): the longest run from each code point on."""
    points, result = sorted(table), []
    while points:
        first = points[0]
        runs = []
        for step in (1, 2):
            n = 1
            while n < len(points) and n < 255 and points[n] == first + n * step and \
                    table[points[n]] - points[n] == table[first] - first:
                n += 1
            runs.append((n, step))
        n, step = max(runs)
        result.append((first, table[first] - first, n, step))
        points = points[n:]
    return result


out.write("/* unicode_tables.c - made by tools/unicode.py; do not edit. */\n")
out.write('#include "lib/token/unicode_tables.h"\n\n')
classes()
numeric()
normalisation()
lower_case()
