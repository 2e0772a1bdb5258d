"""The engines that are compared: each measures a case and answers with named figures."""
import json
import os
import subprocess
import time


CEILINGS = ("read_gb_per_s", "int8_gmac_per_s", "f32_gmac_per_s")


class Failed(Exception):
    """A measurement that did not come about; the text says why."""


def run(command, **more):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no message"]
        raise Failed(f"{os.path.basename(command[0])}: exit status {done.returncode}: {said[0]}")
    return done.stdout


class Colibri:
    """colibri-bench, a process per measurement: loading is one mmap, and its warm-up is not timed."""

    def __init__(self, workshop, cpu):
        self.shop = workshop
        self.options = ["--cpu", cpu] if cpu else []
        self.version = run([workshop.program("colibri-bench"), "--version"]).split()[1]

    def speed(self, case, side, threads):
        out = json.loads(run([self.shop.program("colibri-bench"), "--json", "-t", str(threads),
                              "-r", str(case.repeats), "-b", str(case.sequences),
                              "--prefill", str(case.prompt), "--decode", str(case.decode), *self.options,
                              self.shop.converted(case.source, side.model)]))
        one = out["runs"][0]
        figures = {"level": out["model"]["cpu"]}
        figures |= {f"peak_{name}": one["ceilings"][name]["median"] for name in CEILINGS}
        for name in ("prefill", "decode"):
            figures.update(phase_figures(name, one[name]))
        return figures

    def quality(self, case, side, threads):
        out = json.loads(run([self.shop.program("colibri-bench"), "--json", "-t", str(threads),
                              "--perplexity", self.shop.documents(), "--max-tokens", "256",
                              "--compare", self.shop.converted(case.source, "f32"), *self.options,
                              self.shop.converted(case.source, side.model)]))
        return {"kl": out["kl"], "same_choice": out["same_choice"]}

    def start(self, case, side, threads):
        """Once for the page cache, once to be timed."""
        command = [self.shop.program("colibri-run"), "--ids", "-n", "1", "--stats", "--json",
                   "-t", str(threads), *self.options, self.shop.converted(case.source, side.model)]
        first_token(command)
        return {"seconds": first_token(command)}

    def convert(self, case, side, threads):
        """Conversion with the source in the page cache, and writing as many bytes to the same disk."""
        source, out = self.shop.checkpoint(case.source), self.shop.path("converted.tmp")
        size = self.shop.warm(source)
        begin = time.perf_counter()
        p = subprocess.Popen([self.shop.program("colibri-convert"), "-q", "-f", source, "-o", out])
        _, status, usage = os.wait4(p.pid, 0)
        seconds = time.perf_counter() - begin
        p.returncode = os.waitstatus_to_exitcode(status)
        if p.returncode:
            raise Failed("colibri-convert failed")
        written = os.path.getsize(out)
        plain = time_writing(out, written)
        os.remove(out)
        return {"read_per_s": size / seconds / 1e9, "plain_share": plain / seconds,
                "peak": usage.ru_maxrss * 1024}


def phase_figures(name, phase):
    """tokens/s; bytes of weights and KV cache and multiply-accumulates of the whole pass and of stages."""
    stage = {s["name"]: s for s in phase["stages"]}
    total = {unit: sum(s[unit] for s in phase["stages"]) for unit in ("bytes", "macs")}
    return {
        name: phase["tokens_per_second"],
        name + "_gb_per_s": total["bytes"] / phase["seconds"] / 1e9,
        name + "_gmac_per_s": total["macs"] / phase["seconds"] / 1e9,
        name + "_step_bytes": total["bytes"] / phase["steps"],
        name + "_kv_bytes": stage["Attention"]["bytes"] / phase["steps"],
        name + "_experts_gmac_per_s": stage["ExpertCompute"]["gmac_per_s"],
        name + "_attention_gmac_per_s": stage["Attention"]["gmac_per_s"],
        name + "_of_ceiling": phase["bound"]["of_ceiling"],
    }


def first_token(command):
    """Seconds from starting the program to the first byte of its answer, without the forward pass."""
    begin = time.perf_counter()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as p:
        p.stdin.write(b"7\n")
        p.stdin.close()
        first = p.stdout.read(1)
        end = time.perf_counter()
        p.stdout.read()
        said = p.stderr.read().decode()
    if p.returncode or not first:
        raise Failed(f"colibri-run: {said.strip() or 'no token'}")
    return end - begin - json.loads(said)["prefill"]["seconds"]


def time_writing(path, size):
    """Seconds to write `size` bytes and bring them to the disk."""
    block = os.urandom(1 << 23)
    begin = time.perf_counter()
    with open(path, "wb", buffering=0) as f:
        for at in range(0, size, len(block)):
            f.write(block[:size - at])
        os.fsync(f.fileno())
    return time.perf_counter() - begin


class LlamaCpp:
    """peer.py in the virtual environment, one process for all measurements."""

    def __init__(self, workshop):
        self.shop = workshop
        self.process = subprocess.Popen([workshop.python(), workshop.peer_py, "serve"], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.version = self.ask(do="hello")["version"]

    def ask(self, **request):
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise Failed("the process of llama.cpp has ended")
        answer = json.loads(answer)
        if "error" in answer:
            raise Failed(answer["error"])
        return answer

    def speed(self, case, side, threads):
        return self.ask(do="speed", file=self.shop.quantised(case.source, side.model),
                        threads=threads, prompt=case.prompt, decode=case.decode,
                        sequences=case.sequences, repeats=case.repeats)

    def quality(self, case, side, threads):
        documents, logits = self.shop.reference_logits()
        return self.ask(do="divergence", file=self.shop.quantised(case.source, side.model),
                        threads=threads, documents=documents, logits=logits)

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


class IkLlama:
    """llama-bench of ik_llama.cpp. Its first sample touches the buffers, the second one counts."""

    BEST = "-rtr 1 -fmoe 1 -fa 1"

    def __init__(self, workshop, folder, flags):
        self.shop = workshop
        self.program = os.path.join(folder, "llama-bench")
        self.flags = (flags or self.BEST).split()
        self.version = None

    def speed(self, case, side, threads):
        out = json.loads(run([self.program, "-m", self.shop.quantised(case.source, side.model),
                              "-t", str(threads), "-p", str(case.prompt), "-n", str(case.decode),
                              "-r", "2", "-o", "json", *self.flags]))
        self.version = out[0]["build_commit"]
        best = {bool(test["n_gen"]): max(test["samples_ts"]) for test in out}
        return {"prefill": best[False], "decode": best[True]}
