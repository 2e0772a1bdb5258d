#!/usr/bin/env python3
"""Fills in what Jinja makes of the snippets in test/data/chat/snippets.jsonl.

usage: chat_snippets.py FILE

Needs the package jinja2. A row is an object with `template` and, if wanted, `kwargs`; it gets `text`, or `fails` where Jinja
raises. A row with `refused` is left alone: there Colibri says what it does not know.
"""
import json
import sys

from chat_fuzz import environment


def main():
    path = sys.argv[1]
    env, out = environment(), []
    for line in open(path, encoding="utf-8"):
        row = json.loads(line)
        row = {k: row[k] for k in ("template", "kwargs", "refused") if k in row}
        if "refused" not in row:
            try:
                row["text"] = env.from_string(row["template"]).render(
                    messages=[], tools=None, documents=None, add_generation_prompt=True, **row.get("kwargs", {}))
            except Exception as e:  # whatever Python raises is a failure of the template
                row["fails"] = type(e).__name__
        out.append(json.dumps(row, ensure_ascii=False))
    with open(path, "w", encoding="utf-8") as f:
        f.write("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
