#!/usr/bin/env python3
"""The peer: the same weights in llama.cpp, measured on the same machine.

usage: peer.py make CHECKPOINT_DIR OUT.gguf        bf16 checkpoint (mixtral, olmoe, qwen3_moe) -> bf16 GGUF
       peer.py quantize IN.gguf OUT.gguf q8_0|q4_0
       peer.py serve                               answers requests: a line of JSON in, a line of JSON out

One process serves a whole comparison, so that loading and repacking are paid once and never measured. Requests:
  {"do": "speed", "file", "threads", "prompt", "decode", "sequences", "repeats"}
                                             -> {"prefill", "decode"}: tokens/s, medians
  {"do": "divergence", "file", "threads", "documents", "logits"}       -> {"kl", "same_choice"}

Runs in the virtual environment that bench.py makes; needs gguf, numpy and llama-cpp-python.
"""
import ctypes, json, os, statistics, sys, time

import numpy as np

ARCHITECTURES = {"mixtral": "llama", "olmoe": "olmoe", "qwen3_moe": "qwen3moe"}


class Checkpoint:
    """Tensors of a folder of bf16 safetensors, by name, as 16-bit words."""

    def __init__(self, folder):
        self.config = json.load(open(os.path.join(folder, "config.json")))
        self.where = {}
        index = os.path.join(folder, "model.safetensors.index.json")
        files = ["model.safetensors"]
        if os.path.exists(index):
            files = sorted(set(json.load(open(index))["weight_map"].values()))
        for path in (os.path.join(folder, f) for f in files):
            with open(path, "rb") as f:
                n = int.from_bytes(f.read(8), "little")
                header = json.loads(f.read(n))
            data = np.memmap(path, np.uint8, "r", offset=8 + n)
            for name, t in header.items():
                if name == "__metadata__":
                    continue
                if t["dtype"] != "BF16":
                    sys.exit(f"peer: {path}: {name} is {t['dtype']}, not BF16")
                self.where[name] = data, t["data_offsets"], t["shape"]

    def __getitem__(self, name):
        data, (start, end), shape = self.where[name]
        return data[start:end].view(np.uint16).reshape(shape)


def write_settings(w, c):
    heads = c["num_attention_heads"]
    head_dim = c.get("head_dim") or c["hidden_size"] // heads
    w.add_block_count(c["num_hidden_layers"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(c["intermediate_size"])
    if c["model_type"] == "qwen3_moe":
        w.add_expert_feed_forward_length(c["moe_intermediate_size"])
    w.add_head_count(heads)
    w.add_head_count_kv(c.get("num_key_value_heads", heads))
    w.add_key_length(head_dim)
    w.add_value_length(head_dim)
    w.add_rope_dimension_count(head_dim)
    w.add_rope_freq_base(c.get("rope_theta") or c["rope_parameters"]["rope_theta"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_expert_count(c.get("num_local_experts", c.get("num_experts")))
    w.add_expert_used_count(c["num_experts_per_tok"])
    w.add_vocab_size(c["vocab_size"])
    w.add_tokenizer_model("no_vocab")


def neighbours(x, heads):
    """Rows for llama.cpp's "llama" architecture, which rotates neighbouring pairs instead of halves."""
    half = x.shape[0] // heads // 2
    return x.reshape(heads, 2, half, -1).swapaxes(1, 2).reshape(x.shape)


def layer_tensors(checkpoint, layer):
    """(name, whether it is a matrix, its sources, what to do with them) of one layer."""
    c = checkpoint.config
    mixtral = c["model_type"] == "mixtral"
    mlp = "block_sparse_moe" if mixtral else "mlp"
    parts = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    heads = c["num_attention_heads"]
    rotated = {"q": heads, "k": c.get("num_key_value_heads", heads)} if mixtral else {}
    experts = range(c.get("num_local_experts", c.get("num_experts")))
    source, out = f"model.layers.{layer}.", f"blk.{layer}."

    yield out + "attn_norm.weight", False, [source + "input_layernorm.weight"], None
    yield out + "ffn_norm.weight", False, [source + "post_attention_layernorm.weight"], None
    for name, theirs in (("q", "q"), ("k", "k"), ("v", "v"), ("o", "output")):
        yield (out + f"attn_{theirs}.weight", True, [source + f"self_attn.{name}_proj.weight"],
               rotated.get(name))
    if not mixtral:
        for name in "qk":
            yield (out + f"attn_{name}_norm.weight", False,
                   [source + f"self_attn.{name}_norm.weight"], None)
    yield out + "ffn_gate_inp.weight", False, [source + mlp + ".gate.weight"], None
    for part, theirs in zip(parts, ("gate", "up", "down")):
        yield (out + f"ffn_{theirs}_exps.weight", True,
               [source + f"{mlp}.experts.{e}.{part}.weight" for e in experts], None)


def all_tensors(checkpoint):
    yield "token_embd.weight", True, ["model.embed_tokens.weight"], None
    for layer in range(checkpoint.config["num_hidden_layers"]):
        yield from layer_tensors(checkpoint, layer)
    yield "output_norm.weight", False, ["model.norm.weight"], None
    yield "output.weight", True, ["lm_head.weight"], None


def load(checkpoint, is_matrix, sources, heads):
    """Matrices stay bf16 (as bytes), what llama.cpp wants in f32 becomes f32."""
    x = checkpoint[sources[0]]
    if len(sources) > 1:
        x = np.stack([checkpoint[name] for name in sources])
    if heads:
        x = neighbours(x, heads)
    if is_matrix:
        return np.ascontiguousarray(x).view(np.uint8)
    return (x.astype(np.uint32) << 16).view(np.float32)


def make(folder, out):
    """Tensor by tensor: the model need not fit into memory."""
    import gguf
    checkpoint = Checkpoint(folder)
    w = gguf.GGUFWriter(out, ARCHITECTURES[checkpoint.config["model_type"]])
    write_settings(w, checkpoint.config)
    w.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    for name, is_matrix, sources, _ in all_tensors(checkpoint):
        shape = list(checkpoint[sources[0]].shape)
        shape[-1] *= 2 if is_matrix else 1
        shape = ([len(sources)] if len(sources) > 1 else []) + shape
        kind = np.dtype(np.uint8 if is_matrix else np.float32)
        w.add_tensor_info(name, shape, kind, int(np.prod(shape)) * kind.itemsize,
                          gguf.GGMLQuantizationType.BF16 if is_matrix else None)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    for _, *tensor in all_tensors(checkpoint):
        w.write_tensor_data(load(checkpoint, *tensor))
    w.close()


def quantize(source, out, kind):
    """Every matrix in the same type, the output too: what an all-int4 file of Colibri holds."""
    import llama_cpp as L
    p = L.llama_model_quantize_default_params()
    p.ftype = {"q8_0": L.LLAMA_FTYPE_MOSTLY_Q8_0, "q4_0": L.LLAMA_FTYPE_MOSTLY_Q4_0}[kind]
    p.pure = True
    if L.llama_model_quantize(source.encode(), out.encode(), ctypes.byref(p)):
        sys.exit(f"peer: {source} cannot be quantised")


class Context:
    """One model with room for `sequences` of `length` tokens."""

    def __init__(self, L, model, length, sequences, threads):
        p = L.llama_context_default_params()
        p.n_ctx, p.n_batch, p.n_ubatch = length * sequences, max(length, 512), 512
        p.n_seq_max = sequences
        p.n_threads = p.n_threads_batch = threads
        self.L, self.ctx = L, L.llama_init_from_model(model, p)
        if not self.ctx:
            raise MemoryError("llama.cpp makes no context")
        self.vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(model))
        self.batch = L.llama_batch_init(p.n_batch, 0, 1)

    def clear(self, threads):
        self.L.llama_set_n_threads(self.ctx, threads, threads)
        self.L.llama_memory_clear(self.L.llama_get_memory(self.ctx), True)

    def run(self, tokens, sequences, positions, every_row=False):
        """One pass; it has ended when the logits of the last row can be read."""
        b = self.batch
        b.n_tokens = len(tokens)
        for i, (token, sequence, position) in enumerate(zip(tokens, sequences, positions)):
            b.token[i], b.pos[i], b.n_seq_id[i], b.seq_id[i][0] = token, position, 1, sequence
            b.logits[i] = every_row or i == len(tokens) - 1
        if self.L.llama_decode(self.ctx, b):
            raise RuntimeError("llama_decode failed")
        return self.L.llama_get_logits_ith(self.ctx, len(tokens) - 1)[0]


class Server:
    def __init__(self):
        import llama_cpp
        self.L = L = llama_cpp
        self.quiet = L.llama_log_callback(lambda level, text, user: None)
        L.llama_log_set(self.quiet, ctypes.c_void_p(0))
        L.llama_backend_init()
        self.models, self.contexts = {}, {}

    def model(self, path):
        if path not in self.models:
            model = self.L.llama_model_load_from_file(
                path.encode(), self.L.llama_model_default_params())
            if not model:
                raise FileNotFoundError(f"llama.cpp does not load {path}")
            self.models[path] = model
        return self.models[path]

    def hello(self, _):
        info = self.L.llama_print_system_info().decode()
        return {"version": self.L.__version__, "system": info}

    def speed(self, r):
        key = r["file"], r["prompt"], r["decode"], r["sequences"]
        if key not in self.contexts:
            length = -(-(r["prompt"] + r["decode"]) // 256) * 256
            self.contexts[key] = Context(self.L, self.model(r["file"]), length, r["sequences"],
                                         r["threads"])
            self.time_one(self.contexts[key], r)  # first touch of weights and buffers
        times = [self.time_one(self.contexts[key], r) for _ in range(r["repeats"])]
        return {name: statistics.median(t[name] for t in times) for name in times[0]}

    @staticmethod
    def time_one(c, r):
        n, n_prompt, n_decode = r["sequences"], r["prompt"], r["decode"]
        ids = np.random.default_rng(3).integers(0, c.vocab, (n_prompt + n_decode, n)).tolist()
        c.clear(r["threads"])
        start = time.perf_counter()
        for s in range(n):
            c.run([row[s] for row in ids[:n_prompt]], [s] * n_prompt, range(n_prompt))
        middle = time.perf_counter()
        for i in range(n_prompt, n_prompt + n_decode):
            c.run(ids[i], range(n), [i] * n, every_row=True)
        end = time.perf_counter()
        return {"prefill": n * n_prompt / (middle - start), "decode": n * n_decode / (end - middle)}

    def divergence(self, r):
        """KL from the f32 rows of `logits`, which holds every position of every document, in order."""
        c = Context(self.L, self.model(r["file"]), max(map(len, r["documents"])), 1, r["threads"])
        truth = np.memmap(r["logits"], np.float32, "r").reshape(-1, c.vocab)
        kl, same, rows = 0.0, 0, 0
        for ids in r["documents"]:
            c.clear(r["threads"])
            c.run(ids, [0] * len(ids), range(len(ids)), every_row=True)
            n = len(ids)
            theirs = np.ctypeslib.as_array(self.L.llama_get_logits(c.ctx), (n, c.vocab))
            p, q = log_softmax(truth[rows:rows + n]), log_softmax(theirs)
            kl += float((np.exp(p) * (p - q)).sum())
            same += int((p.argmax(1) == q.argmax(1)).sum())
            rows += n
        self.L.llama_free(c.ctx)
        return {"kl": kl / rows, "same_choice": same / rows}


def log_softmax(x):
    x = x.astype(np.float64)
    x -= x.max(1, keepdims=True)
    return x - np.log(np.exp(x).sum(1, keepdims=True))


def serve():
    server = Server()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(server, request["do"])(request)
        except (MemoryError, RuntimeError, FileNotFoundError) as e:
            answer = {"error": str(e)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    commands = {"make": (make, 2), "quantize": (quantize, 3), "serve": (serve, 0)}
    command, n = commands.get(sys.argv[1] if len(sys.argv) > 1 else "", (None, 0))
    if not command or len(sys.argv) != 2 + n:
        sys.exit(__doc__.strip())
    command(*sys.argv[2:])
