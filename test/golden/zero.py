#!/usr/bin/env python3
"""No tensor of a checkpoint is forgotten: with any one of them zeroed, some logit changes.

usage: zero.py [--build DIR] [FOLDER...]

Every tensor of a checkpoint in turn is set to zero in a copy, which is converted and run. A tensor of which
colibri-convert says that it is not used must change nothing, and is listed. A checkpoint that is refused because of the
zeros (a scale of 0) was read, too; such tensors are counted. Without a FOLDER: three checkpoints of test/data/families,
all of them in `make test-full`. Prints TAP. Standard library only.
"""
import argparse, ctypes, glob, json, os, re, shutil, struct, subprocess, sys, tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ap = argparse.ArgumentParser(usage=__doc__)
ap.add_argument("--build", default=os.environ.get("COLIBRI_BUILD", "build"))
ap.add_argument("folder", nargs="*")
args = ap.parse_args()

lib = ctypes.CDLL(os.path.abspath(os.path.join(args.build, "libcolibri.so")))
lib.colibri_load_model.restype = lib.colibri_last_error.restype = ctypes.c_void_p
lib.colibri_load_model.argtypes = [ctypes.c_char_p]
lib.colibri_unload_model.argtypes = [ctypes.c_void_p]
lib.colibri_infer.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p]


class Checkpoint:
    """A copy of a folder in which one tensor at a time is zero."""

    def __init__(self, folder, tmp):
        self.folder, self.bin = os.path.join(tmp, "c"), os.path.join(tmp, "m.bin")
        shutil.copytree(folder, self.folder)
        with open(os.path.join(folder, "golden.json")) as f:
            cases = json.load(f)["cases"]
        self.prompts = sorted((c["input_ids"] for c in cases), key=len, reverse=True)
        self.vocab = len(cases[0]["logits_last"])
        self.tensor = {}  # name: (file, first byte, bytes)
        for path in sorted(glob.glob(os.path.join(self.folder, "*.safetensors"))):
            with open(path, "rb") as f:
                n = struct.unpack("<Q", f.read(8))[0]
                header = json.loads(f.read(n))
            for name, t in header.items():
                if name != "__metadata__":
                    a, b = t["data_offsets"]
                    self.tensor[name] = (path, 8 + n + a, b - a)

    def convert(self):
        p = subprocess.run([os.path.join(args.build, "bin", "colibri-convert"), "-f", "-t", "1", "--dtype", "f32", self.folder, "-o", self.bin],
                           capture_output=True, text=True)
        return p.returncode, p.stderr

    def logits(self):
        """Of one prompt after the other, all positions, as bytes."""
        model = lib.colibri_load_model(self.bin.encode())
        if not model:
            raise RuntimeError("load: " + ctypes.string_at(lib.colibri_last_error()).decode())
        try:
            for ids in self.prompts:
                out = (ctypes.c_float * (len(ids) * self.vocab))()
                if lib.colibri_infer(model, (ctypes.c_int32 * len(ids))(*ids), out, 1, len(ids), None):
                    raise RuntimeError("infer: " + ctypes.string_at(lib.colibri_last_error()).decode())
                yield bytes(out)
        finally:
            lib.colibri_unload_model(model)

    def with_zeroed(self, name, then):
        path, at, n = self.tensor[name]
        with open(path, "r+b") as f:
            f.seek(at)
            old = f.read(n)
            assert any(old), f"{name} is zero already"
            f.seek(at)
            f.write(bytes(n))
            f.flush()
            result = then()
            f.seek(at)
            f.write(old)
        return result


def check_folder(folder):
    """(problems, what to say)"""
    with tempfile.TemporaryDirectory() as tmp:
        c = Checkpoint(folder, tmp)
        status, said = c.convert()
        if status:
            return [f"convert: status {status}: {said.splitlines()[0]}"], ""
        # one by name, several by a pattern: '#' is a number, '*' the rest
        patterns = re.findall(r"tensors? '([^']*)' (?:is|are) not used", said)
        patterns = ["".join({"#": r"\d+", "*": ".*"}.get(x, re.escape(x)) for x in p) for p in patterns]
        unused = {name for name in c.tensor if any(re.fullmatch(p, name) for p in patterns)}
        usual, problems, refused = list(c.logits()), [], []

        def changed():
            status, said = c.convert()
            if status == 3:
                return "refused"
            if status:
                raise RuntimeError(f"convert: status {status}: {said}")
            return any(a != b for a, b in zip(c.logits(), usual))  # stops at the first difference

        for name in c.tensor:
            result = c.with_zeroed(name, changed)
            if result == "refused":
                refused.append(name)
            elif result == (name in unused):
                problems.append(f"{name} {'is said to be unused, but counts' if result else 'changes nothing'}")
        text = f"{len(c.tensor)} tensors"
        text += f", {len(refused)} refused when zero" if refused else ""
        return problems, text + (f", not used: {' '.join(sorted(unused))}" if unused else "")


folders = args.folder
if not folders:
    own = os.path.join(HERE, "..", "data", "families")
    names = sorted(os.listdir(own)) if os.environ.get("COLIBRI_TEST_FULL") else ["control_ok", "exaone_moe", "llama_moe"]
    folders = [os.path.join(own, n) for n in names]
failed = 0
for i, folder in enumerate(folders, 1):
    name = os.path.basename(os.path.normpath(folder))
    try:
        problems, text = check_folder(folder)
    except RuntimeError as e:
        problems, text = [str(e)], ""
    failed += bool(problems)
    print(f"{'not ok' if problems else 'ok'} {i} {name}: {'; '.join(problems[:8]) or text}", flush=True)
print(f"1..{len(folders)}")
sys.exit(bool(failed))
