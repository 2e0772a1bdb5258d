#!/usr/bin/env python3
"""Makes test/data/tokenizers: small tokenizers and what the reference answers.

usage: tools/token_goldens.py SOURCE_DIR... > /dev/null

SOURCE_DIR is a folder with a published tokenizer.json and a tests.jsonl (lines with a "text"). Its vocabulary is cut to the
first merges, so that the repository stays small and the pattern, the flags and the added tokens stay real. A folder syn_* with
a tokenizer.model and an spm_tests.jsonl gives goldens of that, too.
Wants tokenizers==0.23.3 and sentencepiece==0.2.3 from PyPI, which are the references. Licences of the vocabularies:
test/data/tokenizers/README.md.
"""
import json
import os
import shutil
import sys

import sentencepiece
import tokenizers

assert tokenizers.__version__ == "0.23.3"
MERGES, TEXTS, ADDED = 1500, 90, 60
out_root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "test", "data", "tokenizers")


def cut(doc):
    """Keeps the alphabet, the first merges and what they make; ids are given anew in the old order."""
    model = doc["model"]
    if model["type"] != "BPE" or len(model["merges"]) <= 2 * MERGES:
        return doc
    merges = model["merges"][:MERGES]
    pairs = [m.split(" ") if isinstance(m, str) else m for m in merges]
    made = {p for a, b in pairs for p in (a, b, a + b)}
    keep_added = doc["added_tokens"][:ADDED] + [a for a in doc["added_tokens"][ADDED:] if not a["special"]][:ADDED]
    template = json.dumps(doc.get("post_processor"), ensure_ascii=False)
    keep_added += [a for a in doc["added_tokens"] if a not in keep_added and json.dumps(a["content"], ensure_ascii=False) in template]
    names = {a["content"] for a in keep_added}
    vocab = sorted(model["vocab"], key=model["vocab"].get)
    is_byte = lambda p: len(p) == 6 and p.startswith("<0x")
    kept = [p for p in vocab if p in made or len(p) == 1 and ord(p) < 0x2600 or is_byte(p) or p in names or p == model.get("unk_token")]
    model["vocab"] = {p: i for i, p in enumerate(kept)}
    model["merges"] = merges
    doc["added_tokens"] = keep_added
    following = len(kept)
    for a in keep_added:
        if a["content"] in model["vocab"]:
            a["id"] = model["vocab"][a["content"]]
        else:
            a["id"], following = following, following + 1
    ids = {a["content"]: a["id"] for a in keep_added}

    def renumber(node):
        if isinstance(node, dict):
            for name, token in node.get("special_tokens", {}).items() if isinstance(node.get("special_tokens"), dict) else ():
                token["ids"] = [ids[t] for t in token["tokens"]]
            for v in node.values():
                renumber(v)
        elif isinstance(node, list):
            for v in node:
                renumber(v)
    renumber(doc.get("post_processor"))
    return doc


def texts(source, tests):
    rows = [json.loads(line)["text"] for line in open(os.path.join(source, tests), encoding="utf-8")]
    rows = [t for t in rows if len(t) <= 300]
    step = max(1, len(rows) // TEXTS)
    return rows[::step] + ["", " ", "  two  spaces", "\u0345\u0301e\u0301 \uac01", "a" * 200, "\U0001f1e9\U0001f1ea \u0915\u094d\u0937"]


def rows_of(tok, all_texts):
    """Everything is asked of the reference; streams are byte pieces and cut sequences."""
    size = max(tok.get_vocab().values()) + 1
    for text in all_texts:
        tok.encode_special_tokens = False
        row = {"text": text, "ids": tok.encode(text).ids, "plain": tok.encode(text, add_special_tokens=False).ids}
        row["decoded"] = tok.decode(row["ids"], skip_special_tokens=False)
        row["skipped"] = tok.decode(row["ids"], skip_special_tokens=True)
        yield row
    for ids in random_ids(size + 2):
        yield {"ids": ids, "decoded": tok.decode(ids, skip_special_tokens=False), "skipped": tok.decode(ids, skip_special_tokens=True)}


def random_ids(size):
    state = 12345
    for _ in range(30):
        ids = []
        for _ in range(12):
            state = (state * 1103515245 + 12345) % 2 ** 31
            ids.append((state >> 8) % size)
        yield ids


def sentencepiece_rows(model, all_texts):
    """Without what stands around a text: that is not the library's business."""
    for text in all_texts:
        ids = model.encode(text)
        yield {"text": text, "plain": ids, "ids": ids, "decoded": model.decode(ids)}
    for ids in random_ids(model.get_piece_size()):
        yield {"ids": ids, "decoded": model.decode(ids)}


def write(path, rows):
    with open(path, "w", encoding="ascii") as f:
        for row in rows:
            f.write(json.dumps(row, separators=(",", ":")) + "\n")


for source in sys.argv[1:]:
    name = os.path.basename(os.path.normpath(source))
    folder = os.path.join(out_root, name)
    os.makedirs(folder, exist_ok=True)
    model = os.path.join(source, "tokenizer.model")
    if os.path.exists(model) and name.startswith("syn_"):
        shutil.copyfile(model, os.path.join(folder, "tokenizer.model"))
        processor = sentencepiece.SentencePieceProcessor(model_file=model)
        write(os.path.join(folder, "spm_golden.jsonl"), sentencepiece_rows(processor, texts(source, "spm_tests.jsonl")))
    if not os.path.exists(os.path.join(source, "tokenizer.json")):
        continue
    doc = cut(json.load(open(os.path.join(source, "tokenizer.json"), encoding="utf-8")))
    path = os.path.join(folder, "tokenizer.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump(doc, f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")
    tok = tokenizers.Tokenizer.from_file(path)
    write(os.path.join(folder, "golden.jsonl"), rows_of(tok, texts(source, "tests.jsonl")))
