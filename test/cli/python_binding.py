"""Checks of examples/python/colibri.py that need more than its command line; run by examples.bats."""

import sys
import threading

from colibri import ColibriError, Model

path = sys.argv[1]
text = "The capital of France is"


def fails(part, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except (ColibriError, ValueError) as e:
        assert part in str(e), e
        return e
    raise AssertionError(f"no error that says '{part}'")


with Model(path, threads=1) as model:
    ids = model.encode(text)
    assert model.decode(ids) == text, model.decode(ids)
    assert len(model.encode(text, bos=False)) < len(ids) or ids[0] != model.info.bos_token

    # the bundled model has no template for conversations
    fails("no chat template", model.encode_chat, [{"role": "user", "content": "Hi"}])
    assert not model.info.has_chat_template

    # greedy generation takes the largest logit of each position
    new = list(model.generate_ids(ids, max_new_tokens=8, ignore_eos=True))
    rows = model.logits(ids + new)
    assert len(rows) == len(ids) + 8 and len(rows[0]) == model.info.vocab_size
    for i, token in enumerate(new):
        row = rows[len(ids) + i - 1]
        assert row[token] == max(row), (i, token)
    assert "".join(model.generate(text, max_new_tokens=8, ignore_eos=True)) == model.decode(ids + new)[len(text):]

    # the same seed, the same text
    warm = dict(max_new_tokens=20, temperature=2.0, top_p=0.99)
    one, two, other = (list(model.generate_ids(ids, seed=s, **warm)) for s in (1, 1, 2))
    assert one == two != other

    # several threads, each its own sequence
    got = {}
    threads = [threading.Thread(target=lambda n=n: got.update({n: list(model.generate_ids(ids, max_new_tokens=n))}))
               for n in range(1, 6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(got[n] == got[5][:n] for n in got)

    error = fails("id 100000", model.logits, [1, 100000])
    assert error.code == 2 and error.offset is None
    fails("top_p", list, model.generate_ids(ids, top_p=3.0, temperature=1.0))
    fails("nothing to compute", model.logits, [])
    fails("no tokens", list, model.generate_ids([], max_new_tokens=2))
    half = model.generate(text, max_new_tokens=30)
    next(half)

with Model(sys.argv[2], threads=1) as model:
    assert model.info.has_chat_template
    ids = model.encode_chat([{"role": "user", "content": text}])
    assert ids[0] == model.info.bos_token and model.decode(ids) == text, ids
    fails("at least one message", model.encode_chat, [])

fails("closed", next, half)  # the model went first
fails("closed", model.encode, "x")
assert fails("missing.bin", Model, "missing.bin").file == "missing.bin"
