"""Colibri from Python: ctypes over libcolibri.so, nothing else.

    from colibri import Model
    with Model("model.bin") as model:
        for piece in model.generate("The capital of France is", max_new_tokens=32):
            print(piece, end="", flush=True)

The library is looked for in $COLIBRI_LIBRARY, then beside this file, in build/ of the source tree,
and where the system's loader looks. Errors of the library are raised as ColibriError.
"""

import array
import ctypes as c
import json
import os
import pathlib

KV_DTYPES = {None: 0, "f32": 1, "f16": 2, "int8": 3}


class _Error(c.Structure):
    _fields_ = [("code", c.c_int32), ("sys", c.c_int32), ("file", c.c_char * 256),
                ("field", c.c_char * 128), ("offset", c.c_uint64), ("text", c.c_char * 512)]


class _Sized(c.Structure):
    """A struct whose first member is its size; what is not given is zero."""

    def __init__(self, **fields):
        super().__init__(size=c.sizeof(self), **fields)


class _LoadOptions(_Sized):
    _fields_ = [("size", c.c_size_t), ("threads", c.c_uint32), ("cpu_level", c.c_char_p),
                ("backend", c.c_char_p), ("memory", c.c_uint64), ("verify", c.c_bool),
                ("no_routing_cache", c.c_bool), ("slab_classes", c.c_size_t * 3)]


class _ModelInfo(_Sized):
    _fields_ = [("size", c.c_size_t)] + [(name, c.c_uint32) for name in (
        "n_layer", "n_moe_layer", "hidden_size", "vocab_size", "max_positions", "n_expert",
        "experts_per_token", "expert_size", "n_head", "n_kv_head", "head_dim")] + [
        ("file_bytes", c.c_uint64), ("parameters", c.c_uint64), ("active_parameters", c.c_uint64),
        ("bytes_per_token", c.c_uint64), ("expert_dtype", c.c_char_p), ("dense_dtype", c.c_char_p),
        ("backend", c.c_char_p), ("cpu_level", c.c_char_p), ("device", c.c_char_p),
        ("threads", c.c_uint32), ("bos_token", c.c_int32), ("eos_token", c.c_int32 * 16),
        ("n_eos", c.c_uint32), ("has_tokenizer", c.c_bool), ("temperature", c.c_float),
        ("top_p", c.c_float), ("min_p", c.c_float), ("repetition_penalty", c.c_float),
        ("top_k", c.c_int32), ("n_text_eos", c.c_uint32), ("has_chat_template", c.c_bool)]


class _Config(c.Structure):
    _fields_ = [("top_k", c.c_int32), ("temperature", c.c_float), ("seed", c.c_int32),
                ("max_new_tokens", c.c_int32), ("stream_id", c.c_int32),
                ("enable_profiling", c.c_bool)]


class _BatchOptions(_Sized):
    _fields_ = [("size", c.c_size_t), ("max_sessions", c.c_uint32), ("context", c.c_uint32),
                ("prefill_chunk", c.c_uint32), ("kv_tokens", c.c_uint64), ("kv_dtype", c.c_int32),
                ("experts_per_token", c.c_uint32), ("enable_profiling", c.c_bool),
                ("logit_rows", c.c_uint32)]


class _Sampling(_Sized):
    _fields_ = [("size", c.c_size_t), ("temperature", c.c_float), ("top_k", c.c_uint32),
                ("top_p", c.c_float), ("min_p", c.c_float), ("repetition_penalty", c.c_float),
                ("repetition_window", c.c_uint32), ("seed", c.c_uint64),
                ("presence_penalty", c.c_float), ("frequency_penalty", c.c_float), ("n_prompt", c.c_uint32)]


_PARSE_SPECIAL, _NO_BOS = 1, 2
_P = c.c_void_p

# name: result, arguments
_FUNCTIONS = {
    "colibri_version": (c.c_char_p, []),
    "colibri_last_error_info": (c.POINTER(_Error), []),
    "colibri_load_model_ex": (_P, [c.c_char_p, c.POINTER(_LoadOptions), _P]),
    "colibri_unload_model": (None, [_P]),
    "colibri_model_info": (c.c_int, [_P, c.POINTER(_ModelInfo)]),
    "colibri_infer": (c.c_int, [_P, _P, _P, c.c_size_t, c.c_size_t, c.POINTER(_Config)]),
    "colibri_batch_open": (c.c_int, [c.POINTER(_P), _P, c.POINTER(_BatchOptions)]),
    "colibri_batch_close": (None, [_P]),
    "colibri_batch_step": (c.c_int, [_P, c.POINTER(c.c_size_t)]),
    "colibri_session_open": (c.c_int, [c.POINTER(_P), _P, c.POINTER(_Sampling)]),
    "colibri_session_feed": (c.c_int, [_P, _P, c.c_size_t]),
    "colibri_session_length": (c.c_size_t, [_P]),
    "colibri_session_sample": (c.c_int32, [_P]),
    "colibri_encode": (c.c_int64, [_P, c.c_char_p, c.c_size_t, c.c_uint32, _P, c.c_size_t]),
    "colibri_chat_encode": (c.c_int64, [_P, c.c_char_p, c.c_size_t, _P, c.c_size_t]),
    "colibri_decoder_open": (c.c_int, [c.POINTER(_P), _P, c.c_bool]),
    "colibri_decoder_feed": (c.c_int, [_P, c.c_int32, c.POINTER(_P), c.POINTER(c.c_size_t)]),
    "colibri_decoder_flush": (c.c_int, [_P, c.POINTER(_P), c.POINTER(c.c_size_t)]),
    "colibri_decoder_close": (None, [_P]),
}


def _open_library():
    here = pathlib.Path(__file__).resolve().parent
    named = os.environ.get("COLIBRI_LIBRARY")
    near = [here / "libcolibri.so", here.parents[1] / "build" / "libcolibri.so"]
    path = named or next((str(p) for p in near if p.exists()), "libcolibri.so.0")
    lib = c.CDLL(path)
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


class ColibriError(Exception):
    """`code` is a colibri_status; `file`, `field` and `offset` say where (None: nowhere)."""

    def __init__(self, info):
        super().__init__(info.text.decode(errors="replace"))
        self.code = info.code
        self.file = info.file.decode(errors="replace") or None
        self.field = info.field.decode(errors="replace") or None
        self.offset = None if info.offset == 2**64 - 1 else info.offset


class Model:
    """An open model. Calls from several threads are correct and take turns."""

    def __init__(self, path, threads=0, memory=0, cpu_level=None, verify=False):
        self._handle, self._open_things = None, {}
        self._lib = _open_library()
        options = _LoadOptions(threads=threads, memory=memory, verify=verify,
                               cpu_level=cpu_level.encode() if cpu_level else None)
        self._handle = self._lib.colibri_load_model_ex(os.fsencode(path), options, None)
        if not self._handle:
            raise self._error()
        self.info = _ModelInfo()
        self._check(self._lib.colibri_model_info(self._handle, self.info))

    def close(self):
        """Ends generators that are still open, too."""
        for thing in list(self._open_things):
            self._release(thing)
        if self._handle:
            self._lib.colibri_unload_model(self._handle)
            self._handle = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        self.close()

    def _error(self):
        return ColibriError(self._lib.colibri_last_error_info().contents)

    def _check(self, status):
        if status != 0:
            raise self._error()

    def _open(self):
        if not self._handle:
            raise ValueError("the model is closed")
        return self._handle

    def _keep(self, thing, close):
        """A decoder or batch that must be closed before the model."""
        self._open_things[thing.value] = close

    def _release(self, thing):
        close = self._open_things.pop(thing, None)
        if close:
            close(thing)

    def _alive(self, thing):
        if thing.value not in self._open_things:
            raise ValueError("the model was closed")

    # -- text ---------------------------------------------------------------------------------

    def encode(self, text, special=False, bos=True):
        """The token ids of a text. special: special tokens in it are tokens, not text."""
        data = text.encode(errors="surrogateescape") if isinstance(text, str) else bytes(text)
        flags = (_PARSE_SPECIAL if special else 0) | (0 if bos else _NO_BOS)
        count = self._lib.colibri_encode(self._open(), data, len(data), flags, None, 0)
        if count < 0:
            raise self._error()
        ids = (c.c_int32 * count)()
        self._lib.colibri_encode(self._open(), data, len(data), flags, ids, count)
        return list(ids)

    def encode_chat(self, messages, **more):
        """The token ids of a conversation: [{"role": "user", "content": "Hi"}, ...]. more: tools, documents,
        add_generation_prompt, chat_template_kwargs."""
        data = json.dumps({"messages": messages, **more}).encode()
        count = self._lib.colibri_chat_encode(self._open(), data, len(data), None, 0)
        if count < 0:
            raise self._error()
        ids = (c.c_int32 * count)()
        self._lib.colibri_chat_encode(self._open(), data, len(data), ids, count)
        return list(ids)

    def decode(self, ids, skip_special=True):
        return "".join(self._pieces(ids, skip_special))

    def _pieces(self, ids, skip_special=True, after=()):
        """Text as it becomes certain while ids arrive; it continues that of the ids `after`."""
        decoder, text, n = _P(), _P(), c.c_size_t()
        self._check(self._lib.colibri_decoder_open(decoder, self._open(), skip_special))
        self._keep(decoder, self._lib.colibri_decoder_close)
        try:
            for token in after:
                self._check(self._lib.colibri_decoder_feed(decoder, token, text, n))
            for token in ids:
                self._alive(decoder)
                self._check(self._lib.colibri_decoder_feed(decoder, token, text, n))
                if n.value:
                    yield c.string_at(text, n.value).decode(errors="replace")
            self._check(self._lib.colibri_decoder_flush(decoder, text, n))
            if n.value:
                yield c.string_at(text, n.value).decode(errors="replace")
        finally:
            self._release(decoder.value)

    # -- computing ----------------------------------------------------------------------------

    def logits(self, ids):
        """Logits of every position: one array('f') of vocab_size values per token."""
        n, vocab = len(ids), self.info.vocab_size
        out = (c.c_float * (n * vocab))()
        self._check(self._lib.colibri_infer(self._open(), (c.c_int32 * n)(*ids), out, 1, n, None))
        return [array.array("f", out[i * vocab:(i + 1) * vocab]) for i in range(n)]

    def generate_ids(self, ids, max_new_tokens=256, temperature=0.0, top_k=0, top_p=0.0, min_p=0.0,
                     repetition_penalty=0.0, seed=0, ignore_eos=False, kv_dtype=None):
        """New token ids, one by one. Greedy unless a temperature is given."""
        if max_new_tokens < 0:
            raise ValueError(f"max_new_tokens is {max_new_tokens}: must not be negative")
        ends = () if ignore_eos else self.info.eos_token[:self.info.n_eos]
        context = min(len(ids) + max_new_tokens, self.info.max_positions)
        options = _BatchOptions(context=context, kv_dtype=KV_DTYPES[kv_dtype])
        how = _Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
                        repetition_penalty=repetition_penalty, seed=seed)
        batch, session = _P(), _P()
        self._check(self._lib.colibri_batch_open(batch, self._open(), options))
        self._keep(batch, self._lib.colibri_batch_close)
        try:
            self._check(self._lib.colibri_session_open(session, batch, how))
            fed = list(ids)
            for made in range(max_new_tokens):
                if len(ids) + made > context:
                    return
                self._alive(batch)
                self._feed(batch, session, fed)
                token = self._lib.colibri_session_sample(session)
                if token < 0:
                    raise self._error()
                if token in ends:
                    return
                yield token
                fed = [token]
        finally:
            self._release(batch.value)

    def _feed(self, batch, session, ids):
        """Feeds ids and computes until they are done."""
        lib, ready = self._lib, c.c_size_t()
        self._check(lib.colibri_session_feed(session, (c.c_int32 * len(ids))(*ids), len(ids)))
        while not ready.value:
            before = lib.colibri_session_length(session)
            self._check(lib.colibri_batch_step(batch, ready))
            if lib.colibri_session_length(session) == before:
                raise ValueError("there are no tokens to continue")

    def generate(self, prompt, special=False, **options):
        """The continuation of a text, piece by piece; options as for generate_ids."""
        ids = self.encode(prompt, special=special)
        return self._pieces(self.generate_ids(ids, **options), after=ids)


def main():
    import argparse
    import signal

    parser = argparse.ArgumentParser(description="continue a text")
    parser.add_argument("model")
    parser.add_argument("prompt")
    parser.add_argument("-n", type=int, default=64, help="most new tokens (64)")
    parser.add_argument("--temp", type=float, default=0.0, help="temperature (0: greedy)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # whoever reads along may go away
    try:
        with Model(args.model) as model:
            for piece in model.generate(args.prompt, max_new_tokens=args.n, temperature=args.temp,
                                        seed=args.seed):
                print(piece, end="", flush=True)
            print()
    except (ColibriError, ValueError, OSError) as e:
        raise SystemExit(f"colibri.py: {e}")


if __name__ == "__main__":
    main()
