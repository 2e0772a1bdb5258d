#!/usr/bin/env python3
"""Compares tokenizers with the libraries they stand in for, on random text and random settings.

usage: tools/token_fuzz.py [--build build] [--count N] [--settings N] [--seed S] SOURCE_DIR...

SOURCE_DIR is a folder with a tokenizer.json, a tokenizer.model, or the tiktoken.model and tokenizer_config.json of a Kimi.
Each is asked for the ids of N random strings and the text of as many random ids. With --settings, N further tokenizers are made
of each json and model by changing what surrounds the model at random: normalizers, pre-tokenizers, decoders, post-processor,
added tokens, flags; they get a hundredth of the strings each. A tokenizer that Colibri refuses counts as refused, not as
different; the reasons are listed at the end.

Wants tokenizers==0.23.3, sentencepiece==0.2.3 and protobuf from PyPI, for a tiktoken.model also tiktoken==0.14.0. Exit status 1
if anything differs.
"""
import argparse
import collections
import copy
import functools
import json
import os
import random
import subprocess
import sys
import tempfile

os.environ |= {"TOKENIZERS_PARALLELISM": "false", "RUST_BACKTRACE": "0"}
import sentencepiece
import tokenizers
from sentencepiece import sentencepiece_model_pb2

assert tokenizers.__version__ == "0.23.3" and sentencepiece.__version__ == "0.2.3"

# -- random text -------------------------------------------------------------------------------------------------------

BLOCKS = [(0x20, 0x7E, 30), (0x00, 0x1F, 2), (0xA0, 0xFF, 4), (0x100, 0x24F, 3), (0x300, 0x36F, 5), (0x370, 0x5FF, 4),
    (0x600, 0x77F, 3),
          (0x900, 0xDFF, 3), (0xE00, 0xEFF, 2), (0x1100, 0x11FF, 3), (0x1E00, 0x1FFF, 3), (0x2000, 0x206F, 5),
          (0x2070, 0x218F, 3),
          (0x2190, 0x27BF, 3), (0x3000, 0x30FF, 4), (0x3130, 0x318F, 1), (0x3200, 0x33FF, 1), (0x4E00, 0x9FFF, 6),
          (0xAC00, 0xD7A3, 4),
          (0xE000, 0xF8FF, 1), (0xF900, 0xFAFF, 2), (0xFB00, 0xFFFF, 4), (0x10000, 0x1FFFF, 4), (0x1D400, 0x1D7FF, 2),
          (0x1F000, 0x1FAFF, 5),
          (0x20000, 0x323AF, 2), (0xE0000, 0xE01EF, 1), (0x110, 0x10FFFF, 2)]
SPACES = " \t\n\r\v\f\x1c\x1f\x85\u00a0\u1680\u180e\u2000\u2009\u200b\u2028\u2029\u202f\u205f\u3000\ufeff\u2581"
SNIPPETS = ["'s", "'RE", "'\u017f", "can't", "I'LL", "don\u2019t", "  ", "\r\n", "\n\n \n", "123456", "\u0663\u0664",
    "e\u0301", "\ufb01", "\u00bd",
            "\u1e9b\u0323", "\u1100\u1161\u11a8", "\uac01", "\u0e33", "\U0001f468\u200d\U0001f469\u200d\U0001f467",
            "\U0001f1e9\U0001f1ea",
            "foo_bar(x)", "http://a.b/c?d=e&f", "<|", "|>", "</", "<0x41>", "<unk>", "<s>", "\u2581", "\u2581\u2581",
            "\u0345\u0301", "HTTPServer", "camelCase",
            "\u01c5a", "\u0130I\u0131", "\u00df", "\u03a3\u03c2", "\u4e2d\u6587\u3002",
            "\u3053\u3093\u306b\u3061\u306f", "\u30ac\u309a", "\ud55c\uad6d\uc5b4", "//*", "```py\n", "\t\t", "0x1F",
            "3.14e-10",
            "\u09e6\u0967", "\u216b", "\u2460", "\u00b2", "\u0904\u093c", "\u0f71\u0f72\u0f74"]


# Blocks by weight, so that choosing one is one index.
WEIGHED = [(low, high - low + 1) for low, high, weight in BLOCKS for _ in range(weight)]


def one_of(rng, choices):
    """rng.choice, at a third of its price."""
    return choices[int(rng.random() * len(choices))]


def character(rng):
    low, n = one_of(rng, WEIGHED)
    c = low + int(rng.random() * n)
    return chr(c) if not 0xD800 <= c < 0xE000 else "\ufffd"


def some_text(rng, pieces):
    """A mixture of characters, white space, snippets, and pieces and added tokens of the vocabulary."""
    out = []
    for _ in range(one_of(rng, (1, 2, 3, 5, 8, 13, 30))):
        kind = rng.random()
        if kind < 0.35:
            out += [character(rng) for _ in range(one_of(rng, (1, 2, 3, 4)))]
        elif kind < 0.5:
            out.append(one_of(rng, SPACES) * one_of(rng, (1, 1, 1, 2, 3)))
        elif kind < 0.65:
            out.append(one_of(rng, SNIPPETS))
        elif kind < 0.7:
            out.append(character(rng) * one_of(rng, (2, 3, 7, 40)))
        elif kind < 0.8:
            out += [one_of(rng, "abcdeinorst") for _ in range(one_of(rng, range(1, 10)))]
        else:
            piece = one_of(rng, pieces)
            out.append(piece if rng.random() < 0.8 else piece[:int(rng.random() * (len(piece) + 1))])
        if rng.random() < 0.3:
            out.append(" ")
    return "".join(out)


def some_ids(rng, size):
    return [int(rng.random() * size) for _ in range(one_of(rng, (1, 2, 5, 12)))]


# -- asking ------------------------------------------------------------------------------------------------------------

class Refused(Exception):
    pass


def ask(inspect, options, path, rows):
    text = "".join(json.dumps(r) + "\n" for r in rows)
    p = subprocess.run([inspect, *options, path], input=text, capture_output=True, text=True)
    if p.returncode == 3 and not p.stdout:
        raise Refused(p.stderr.strip().splitlines()[-1])
    if p.returncode:
        raise RuntimeError(f"status {p.returncode}: {p.stderr.strip()[-400:]}")
    return [json.loads(line) for line in p.stdout.splitlines()]


class Report:
    def __init__(self, show):
        self.show, self.asked, self.differ, self.refused = show, 0, 0, collections.Counter()

    def compare(self, where, what, given, got, want):
        self.asked += 1
        if got == want:
            return
        self.differ += 1
        if self.differ <= self.show:
            print(f"{where}: {what} of {given!r}\n   got  {str(got)[:300]!r}\n   want {str(want)[:300]!r}")


def safely(function, *args, **kw):
    """What the reference panics at is not compared."""
    try:
        return function(*args, **kw)
    except BaseException as e:
        if isinstance(e, (KeyboardInterrupt, SystemExit)):
            raise
        return None


@functools.lru_cache(maxsize=1)
def load_json(path):
    """The tokenizer, pieces to make text of, and how many ids to try."""
    tok = tokenizers.Tokenizer.from_file(path)
    vocabulary = tok.get_vocab()
    pieces = sorted(p for p in vocabulary if p) or ["a"]
    added = sorted(t.content for t in tok.get_added_tokens_decoder().values() if t.content)
    pool = pieces + added * (1 + len(pieces) // (4 * len(added)) if added else 0)
    return tok, pool, max(vocabulary.values()) + 3


def compare_json(report, inspect, where, path, rng, count):
    tok, pool, size = load_json(os.path.join(path, "tokenizer.json"))
    texts = [some_text(rng, pool) for _ in range(count)]
    for special in (True, False):
        part = texts if special else texts[:count // 10]
        want = [safely(tok.encode, t, add_special_tokens=special) for t in part]
        kept = [(t, w.ids) for t, w in zip(part, want) if w is not None]
        got = ask(inspect, ["--encode", "--parse-special"], path, [{"text": t, "add_special": special} for t, _ in kept])
        for (t, w), g in zip(kept, got):
            report.compare(where, "ids", t, g["ids"], w)
    lists = [w for _, w in kept] + [some_ids(rng, size) for _ in range(count)]
    for skip in (False, True):
        want = [safely(tok.decode, ids, skip_special_tokens=skip) for ids in lists]
        part = [(ids, w) for ids, w in zip(lists, want) if w is not None]
        got = ask(inspect, ["--decode"] + ["--skip-special"] * skip, path, [{"ids": ids} for ids, _ in part])
        for (ids, w), g in zip(part, got):
            report.compare(where, "text", ids, g["text"], w)
            if "\ufffd" not in w:
                report.compare(where, "stream", ids, "".join(g["pieces"]), w)


def compare_model(report, inspect, where, path, rng, count):
    """NUL ends the library's texts; surrogates it does not take."""
    processor = sentencepiece.SentencePieceProcessor(model_file=path)
    size = processor.get_piece_size()
    pieces = [processor.id_to_piece(i) for i in range(size)]
    texts = [some_text(rng, pieces).replace("\0", "") for _ in range(count)]
    got = ask(inspect, ["--encode"], path, [{"text": t, "add_special": False} for t in texts])
    for t, g in zip(texts, got):
        report.compare(where, "ids", t, g["ids"], processor.encode(t))
    lists = [some_ids(rng, size) for _ in range(count)]
    for ids, g in zip(lists, ask(inspect, ["--decode"], path, [{"ids": ids} for ids in lists])):
        report.compare(where, "text", ids, g["text"], processor.decode(ids))
        report.compare(where, "stream", ids, "".join(g["pieces"]), g["text"])


KIMI = "|".join([r"[\p{Han}]+"]
                + [r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]" + upper
                   + r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]" + lower + r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
                   for upper, lower in ("*+", "+*")]
                + [r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])


def compare_ranks(report, inspect, where, path, rng, count):
    """The 258 ids behind the ranks are special: named by the configuration, or reserved."""
    import base64
    import tiktoken
    assert tiktoken.__version__ == "0.14.0"
    lines = open(os.path.join(path, "tiktoken.model"), encoding="ascii").read().split()
    ranks = {base64.b64decode(token): int(rank) for token, rank in zip(lines[::2], lines[1::2])}
    added = json.load(open(os.path.join(path, "tokenizer_config.json"), encoding="utf-8"))["added_tokens_decoder"]
    special = {added[str(i)]["content"] if str(i) in added else f"<|reserved_token_{i}|>": i
               for i in range(len(ranks), len(ranks) + 258)}
    encoding = tiktoken.Encoding("kimi", pat_str=KIMI, mergeable_ranks=ranks, special_tokens=special)
    pieces = [token.decode(errors="replace") for token in ranks] + list(special) * (1 + len(ranks) // 1000)
    texts = [some_text(rng, pieces) for _ in range(count)]
    for parse in (True, False):
        got = ask(inspect, ["--encode"] + ["--parse-special"] * parse, path, [{"text": t} for t in texts])
        for t, g in zip(texts, got):
            report.compare(where, "ids", t, g["ids"],
                           encoding.encode(t, allowed_special="all" if parse else set(), disallowed_special=()))
    lists = [some_ids(rng, len(ranks) + 258) for _ in range(count)]
    for ids, g in zip(lists, ask(inspect, ["--decode"], path, [{"ids": ids} for ids in lists])):
        report.compare(where, "text", ids, g["text"], encoding.decode(ids))
        report.compare(where, "stream", ids, "".join(g["pieces"]), g["text"])


# -- random settings ---------------------------------------------------------------------------------------------------

PATTERNS = [{"String": " "}, {"String": "\u2581"}, {"String": "ab"}, {"Regex": "\\s+"}, {"Regex": "\\p{N}{1,3}"},
    {"Regex": "\\d"}, {"Regex": "[^\\s\\p{L}]+"},
            {"Regex": "\\p{Han}|[a-c]{2}"}, {"Regex": " ?\\p{L}+| ?[^\\s\\p{L}]+|\\s+(?!\\S)|\\s+"},
            {"Regex": "(?i:'s|'t)|\\w?x"}, {"Regex": "[\\r\\n]"},
            {"Regex": "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"},
            {"Regex": "\\p{Lu}?\\p{Ll}+"}, {"Regex": "[\\p{M}\\p{P}]"},
            {"Regex": "(?:a|e|(?=o)o){1,2}|z++"}, {"Regex": "^\\S|\\S$"}, {"Regex": "[0-9]{2,}?"}]
BEHAVIORS = ["Removed", "Isolated", "Contiguous", "MergedWithPrevious", "MergedWithNext"]


def flip(rng):
    return rng.random() < 0.5


def metaspace(rng):
    return {"type": "Metaspace", "replacement": rng.choice(["\u2581", "\u2581", "_"]), "prepend_scheme": rng.choice(["always", "first", "never"]),
            "split": flip(rng)}


def normalizer(rng):
    kind = rng.randrange(9)
    if kind < 5:
        return {"type": ["NFC", "NFD", "NFKC", "NFKD", "Lowercase"][kind]}
    if kind == 5:
        return {"type": "Strip", "strip_left": flip(rng), "strip_right": flip(rng)}
    if kind == 6:
        return {"type": "Prepend", "prepend": rng.choice(["\u2581", "x", " "])}
    return {"type": "Replace", "pattern": rng.choice(PATTERNS), "content": rng.choice(["\u2581", "", " ", "yz", "\u00e9"])}


def pre_tokenizer(rng):
    kind = rng.randrange(6)
    if kind == 0:
        return {"type": "Digits", "individual_digits": flip(rng)}
    if kind == 1:
        return metaspace(rng)
    if kind == 2:
        return {"type": rng.choice(["Whitespace", "WhitespaceSplit", "Punctuation", "BertPreTokenizer"]), **({})}
    return {"type": "Split", "pattern": rng.choice(PATTERNS), "behavior": rng.choice(BEHAVIORS), "invert": flip(rng)}


def decoder(rng, level):
    if level:
        return {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    llama = [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
             {"type": "Strip", "content": " ", "start": rng.randrange(3), "stop": 0}]
    kind = rng.randrange(6)
    return (None if kind == 0 else metaspace(rng) if kind == 1 else {"type": "BPEDecoder", "suffix": "</w>"} if kind == 2
            else {"type": "Sequence", "decoders": llama[:rng.randint(1, 4)]} if kind == 3
            else {"type": "Sequence", "decoders": llama})


def some_of(rng, kind, most, what, item):
    n = rng.randint(0, most)
    if n == 0:
        return None
    return item(rng) if n == 1 else {"type": "Sequence", what: [item(rng) for _ in range(n)]}


def add_tokens(rng, doc):
    vocab = doc["model"]["vocab"]
    names = list(vocab) if isinstance(vocab, dict) else [p for p, _ in vocab]
    known = {t["content"] for t in doc["added_tokens"]}
    for _ in range(rng.randint(0, 6)):
        content = rng.choice(["<x>", "<|y|>", "zz", "Q q", "\u00e9t\u00e9", "  ", "[A]", "[A]B", rng.choice(names), character(rng)])
        if content in known or not content:
            continue
        known.add(content)
        doc["added_tokens"].append({"id": 10 ** 6, "content": content, "single_word": flip(rng), "lstrip": flip(rng), "rstrip": flip(rng),
                                    "normalized": flip(rng), "special": flip(rng)})


def change_json(rng, doc):
    """A tokenizer with the same model and other surroundings."""
    doc = copy.deepcopy(doc)
    model = doc["model"]
    level = "ByteLevel" in json.dumps(doc["pre_tokenizer"])
    if flip(rng):
        doc["normalizer"] = some_of(rng, "n", 3, "normalizers", normalizer)
    if flip(rng):
        steps = [pre_tokenizer(rng) for _ in range(rng.randint(0, 2))]
        if level:
            steps.append({"type": "ByteLevel", "add_prefix_space": flip(rng), "trim_offsets": True, "use_regex": flip(rng)})
        doc["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps} if steps else None
    if flip(rng):
        doc["decoder"] = decoder(rng, level)
    if flip(rng):
        doc["post_processor"] = None
    add_tokens(rng, doc)
    if model["type"] == "BPE":
        for key in ("fuse_unk", "ignore_merges") + (() if level else ("byte_fallback",)):
            if flip(rng):
                model[key] = flip(rng)
        if rng.random() < 0.3 and not level:
            model["unk_token"] = rng.choice([None, rng.choice(list(model["vocab"]))])
        if rng.random() < 0.1:
            model["end_of_word_suffix"] = rng.choice(["</w>", ""])
    elif model["type"] == "Unigram":
        model["byte_fallback"] = flip(rng)
        if rng.random() < 0.3:
            model["unk_id"] = rng.randrange(len(model["vocab"]))
        if flip(rng):
            for piece in model["vocab"]:
                piece[1] = round(piece[1]) if flip(rng) else -rng.random() * 20
    return doc


def change_model(rng, data):
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(data)
    spec = proto.normalizer_spec
    for key in ("add_dummy_prefix", "remove_extra_whitespaces", "escape_whitespaces"):
        if flip(rng):
            setattr(spec, key, flip(rng))
    if rng.random() < 0.3:
        spec.precompiled_charsmap = b""
    if rng.random() < 0.3:
        proto.trainer_spec.treat_whitespace_as_suffix = flip(rng)
    if rng.random() < 0.3:
        proto.trainer_spec.unk_surface = rng.choice(["", "?", " <unk> "])
    kinds = proto.SentencePiece
    unigram = proto.trainer_spec.model_type == proto.trainer_spec.UNIGRAM
    normal = [p for p in proto.pieces if p.type == kinds.NORMAL]
    if unigram and flip(rng):
        for piece in normal:
            piece.score = round(piece.score) if flip(rng) else -rng.random() * 20
    names = {p.piece for p in proto.pieces}
    for _ in range(rng.randint(0, 5)):
        name = rng.choice(["  ", "\u2581\u2581", "\t", "ab c", "<y>", "\u00e9", "zz", character(rng), rng.choice(normal).piece + "q"])
        if name not in names and "\0" not in name:
            names.add(name)
            proto.pieces.add(piece=name, score=-rng.random(), type=rng.choice([kinds.USER_DEFINED, kinds.USER_DEFINED, kinds.CONTROL]))
    for _ in range(rng.randint(0, 3) if unigram else 0):
        rng.choice(normal).type = rng.choice([kinds.UNUSED, kinds.USER_DEFINED])
    return proto.SerializeToString()


PART = 25000  # strings at a time, for the sake of memory

# -- all ---------------------------------------------------------------------------------------------------------------

def changed(report, inspect, source, rng, args):
    """Tokenizers with other settings, each in a folder of its own for as long as it is asked."""
    json_path, model_path = (os.path.join(source, f) for f in ("tokenizer.json", "tokenizer.model"))
    doc = json.load(open(json_path, encoding="utf-8")) if os.path.exists(json_path) else None
    data = open(model_path, "rb").read() if os.path.exists(model_path) else None
    count = max(10, args.count // 100)
    for n in range(args.settings):
        for made in (doc, data):
            if made is None:
                continue
            with tempfile.TemporaryDirectory() as folder:
                where = f"{os.path.basename(os.path.normpath(source))} settings {n}"
                try:
                    if made is doc:
                        with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as f:
                            json.dump(change_json(rng, doc), f)
                        if safely(tokenizers.Tokenizer.from_file, f.name) is not None:
                            compare_json(report, inspect, where, folder, rng, count)
                    else:
                        path = os.path.join(folder, "tokenizer.model")
                        with open(path, "wb") as f:
                            f.write(change_model(rng, data))
                        if safely(sentencepiece.SentencePieceProcessor, model_file=path) is not None:
                            compare_model(report, inspect, where, path, rng, count)
                except Refused as e:
                    report.refused[str(e).split(": ", 2)[-1]] += 1
                if args.keep and report.differ:
                    subprocess.run(["cp", "-r", folder + "/.", args.keep], check=True)
                    return


ap = argparse.ArgumentParser(usage=__doc__)
ap.add_argument("--build", default="build")
ap.add_argument("--count", type=int, default=1000)
ap.add_argument("--settings", type=int, default=0)
ap.add_argument("--seed", type=int, default=1)
ap.add_argument("--show", type=int, default=5, help="differences shown per folder")
ap.add_argument("--keep", help="folder for the first changed tokenizer that differs; then stop")
ap.add_argument("source", nargs="+")
args = ap.parse_args()
inspect = os.path.join(args.build, "bin/colibri-inspect")
bad = 0
for source in args.source:
    name, rng, report = os.path.basename(os.path.normpath(source)), random.Random(args.seed), Report(args.show)
    for done in range(0, args.count, PART):
        count = min(PART, args.count - done)
        if os.path.exists(os.path.join(source, "tokenizer.json")):
            compare_json(report, inspect, name, source, rng, count)
        if os.path.exists(os.path.join(source, "tokenizer.model")):
            compare_model(report, inspect, name + " tokenizer.model", os.path.join(source, "tokenizer.model"), rng, count)
        elif os.path.exists(os.path.join(source, "tiktoken.model")):
            compare_ranks(report, inspect, name + " tiktoken.model", source, rng, count)
    changed(report, inspect, source, rng, args)
    print(f"{name:24} {report.asked} compared, {report.differ} differ, {sum(report.refused.values())} of the settings refused", flush=True)
    for why, times in report.refused.most_common(12):
        print(f"   {times} refused: {why[:150]}")
    bad += report.differ
sys.exit(bad > 0)
