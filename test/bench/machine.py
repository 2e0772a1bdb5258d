"""What machine this is, and how much of it others used during a run."""
import os
import platform
import re
import subprocess
import time


def first_match(path, pattern, otherwise="unknown"):
    try:
        with open(path) as f:
            found = re.search(pattern, f.read(), re.M)
    except OSError:
        found = None
    return found.group(1).strip() if found else otherwise


def compiler():
    said = subprocess.run(["cc", "--version"], stdout=subprocess.PIPE, text=True)
    return said.stdout.splitlines()[0] if said.stdout else "unknown compiler"


def ticks():
    """Of all processors since the start: in work, and stolen by the host of a virtual machine."""
    with open("/proc/stat") as f:
        user, nice, system, _, _, irq, soft, steal = map(int, f.readline().split()[1:9])
    return user + nice + system + irq + soft, steal


def own_ticks():
    """Of this process and the children that have ended."""
    t = os.times()
    return (t.user + t.system + t.children_user + t.children_system) * os.sysconf("SC_CLK_TCK")


class Watch:
    def __init__(self):
        self.begin, self.own, self.start = ticks(), own_ticks(), time.monotonic()
        self.first = self.load()

    @staticmethod
    def load():
        with open("/proc/loadavg") as f:
            return " ".join(f.read().split()[:3])

    def idle(self):
        return float(self.first.split()[0]) < 0.3

    def describe(self):
        """To be called when all children have ended, because only then their time is known."""
        n = len(os.sched_getaffinity(0))
        seconds = time.monotonic() - self.start
        whole = max(seconds * os.sysconf("SC_CLK_TCK") * n, 1)
        work, steal = (b - a for a, b in zip(self.begin, ticks()))
        others = max(work - (own_ticks() - self.own), 0)
        memory = int(first_match("/proc/meminfo", r"^MemTotal:\s+(\d+)", "0")) * 1024
        return {
            "processor": first_match("/proc/cpuinfo", r"^model name\s*:\s*(.*)$", platform.machine()),
            "cores": n,
            "memory": f"{memory / 1e9:.0f} GB",
            "system": first_match("/etc/os-release", r'^PRETTY_NAME="?([^"\n]*)', platform.system()),
            "kernel": platform.release().split("-")[0],
            "compiler": compiler(),
            "load": f"{self.first} before, {self.load()} after",
            "others": f"other processes used {100 * others / whole:.1f} % of the processors, "
                      f"the host of this virtual machine {100 * steal / whole:.1f} %",
            "minutes": round(seconds / 60),
            "date": time.strftime("%Y-%m-%d"),
        }
