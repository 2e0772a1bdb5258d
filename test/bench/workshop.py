"""Makes what a comparison needs, once, in one folder: the peer, checkpoints' files, documents.

Whatever takes long is written under another name and renamed when complete, so an interruption leaves nothing that
looks finished. Only `install` uses the network.
"""
import json
import os
import shutil
import subprocess
import sys

from engines import Failed, run
from plan import CONVERTED, QUANTISED

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
DEMO = os.path.join(ROOT, "examples", "demo-model")
PEER = "llama-cpp-python==0.3.36"
PEER_CMAKE = "-DGGML_NATIVE=ON"
DISK = 30e9  # all files of the random model, and the peer's bf16 one for a while


def say(text):
    print(f"bench: {text}", file=sys.stderr, flush=True)


class Workshop:
    def __init__(self, build, folder, tiny=False):
        """A tiny one has the bundled model in the place of the random one, and little to read."""
        self.bin = os.path.join(build, "bin")
        self.folder = folder
        self.tiny = tiny
        self.peer_py = os.path.join(HERE, "peer.py")
        os.makedirs(folder, exist_ok=True)

    def path(self, name):
        return os.path.join(self.folder, name)

    def program(self, name):
        return os.path.join(self.bin, name)

    def python(self):
        return self.path("venv/bin/python3")

    # -- the peer ------------------------------------------------------------------

    def install(self, cmake):
        """llama.cpp, compiled here for this processor unless `cmake` says otherwise."""
        what = f"{PEER} {cmake or PEER_CMAKE}"
        mark = self.path("venv/complete")
        if os.path.exists(mark) and open(mark).read() == what:
            return
        say(f"compiling {PEER}, which takes many minutes; log: {self.path('pip.log')}")
        shutil.rmtree(self.path("venv"), ignore_errors=True)
        flags = f"{cmake or PEER_CMAKE} -DLLAVA_BUILD=OFF"
        env = {**os.environ, "CMAKE_ARGS": flags, "FORCE_CMAKE": "1",
               "CMAKE_BUILD_PARALLEL_LEVEL": str(len(os.sched_getaffinity(0)))}
        with open(self.path("pip.log"), "w") as log:
            for command in ([sys.executable, "-m", "venv", self.path("venv")],
                            [self.python(), "-m", "pip", "install", "numpy", "gguf"],
                            [self.python(), "-m", "pip", "install", "-v",
                             "--no-binary", "llama-cpp-python", PEER]):
                if subprocess.call(command, stdout=log, stderr=log, env=env):
                    raise Failed(f"'{' '.join(command[1:])}' failed; see {self.path('pip.log')}")
        with open(mark, "w") as f:
            f.write(what)

    # -- models --------------------------------------------------------------------

    def checkpoint(self, source):
        return DEMO if source == "demo" or self.tiny else self.path("random")

    def converted(self, source, model):
        return self.path(f"{source}-{model}.bin")

    def quantised(self, source, model):
        return self.path(f"{source}-{model}.gguf")

    def make_random(self, numpy_python):
        """The checkpoint of the speed figures."""
        out = self.checkpoint("random")
        if os.path.exists(out):
            return
        free = shutil.disk_usage(self.folder).free
        if free < DISK:
            raise Failed(f"{self.folder}: needs {DISK / 1e9:.0f} GB, {free / 1e9:.0f} GB are free")
        say("making the random checkpoint, 7 GB")
        shutil.rmtree(out + ".tmp", ignore_errors=True)
        run([numpy_python, os.path.join(ROOT, "tools", "make_random_moe.py"), "bench", out + ".tmp"])
        os.rename(out + ".tmp", out)

    def convert(self, source, models):
        for model in models:
            out = self.converted(source, model)
            if not os.path.exists(out):
                say(f"converting: {os.path.basename(out)}")
                run([self.program("colibri-convert"), "-q", *CONVERTED[model].split(),
                     self.checkpoint(source), "-o", out])

    def quantise(self, source, models):
        """The peer's files, from the same checkpoint by way of a lossless bf16 one."""
        missing = [m for m in models if not os.path.exists(self.quantised(source, m))]
        whole = self.path(f"{source}-bf16.tmp")
        if missing:
            say(f"making the peer's file of the {source} model")
            run([self.python(), self.peer_py, "make", self.checkpoint(source), whole])
        for model in missing:
            out = self.quantised(source, model)
            say(f"quantising: {os.path.basename(out)}")
            run([self.python(), self.peer_py, "quantize", whole, out + ".tmp", QUANTISED[model]])
            os.rename(out + ".tmp", out)
        if missing:
            os.remove(whole)

    def warm(self, folder):
        """Reads the weights of a checkpoint, so that they are in the page cache; their size."""
        size = 0
        for name in os.listdir(folder):
            if name.endswith(".safetensors"):
                with open(os.path.join(folder, name), "rb", buffering=0) as f:
                    while f.read(1 << 24):
                        pass
                    size += f.tell()
        return size

    @staticmethod
    def evict(path):
        """Asks the page cache to forget a file: just written ones may stand there in small pages."""
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)

    # -- documents -----------------------------------------------------------------

    def documents(self):
        """The text on which quality is measured: a file with a document per line."""
        path = self.path("documents.txt")
        with open(os.path.join(DEMO, "held-out.txt")) as f:
            lines = f.readlines()[:1 if self.tiny else 40]
        lines += ["The capital of France is Paris. France is in Europe.\n",
                  "The currency of Japan is the Yen. Japan is in Asia.\n"]
        with open(path, "w") as f:
            f.writelines(lines)
        return path

    def reference_logits(self):
        """Ids of the documents, cut to 256 tokens, and the file of their logits in f32, row after row."""
        model, out = self.converted("demo", "f32"), self.path("logits.f32")
        with open(self.documents()) as f:
            lines = "".join(json.dumps({"text": line.rstrip("\n")}) + "\n" for line in f)
        said = run([self.program("colibri-inspect"), "--encode", model], input=lines)
        ids = [json.loads(line)["ids"][:256] for line in said.splitlines()]
        run([self.program("colibri-run"), "-q", "--ids", "--lines", "-n", "0", "--logits", out, model],
            input="".join(" ".join(map(str, document)) + "\n" for document in ids))
        return ids, out
