"""The figures of a run: kept in a file as they come, so that an interrupted run goes on."""
import json
import os
import statistics


class Samples:
    def __init__(self, path, identity):
        """Takes what is in the file if it was measured with the same programs (`identity`)."""
        self.path, self.found = path, {}
        lines = []
        if os.path.exists(path):
            with open(path) as f:
                lines = [line for line in f if line.endswith("\n")]  # an unfinished last line is dropped
        if lines and json.loads(lines[0]) == identity:
            for line in lines[1:]:
                s = json.loads(line)
                self.found[s["case"], s["side"], s["round"]] = s["figures"]
        self.identity = identity
        self.rewrite()

    def rewrite(self):
        with open(self.path + ".tmp", "w") as f:
            f.write(json.dumps(self.identity) + "\n")
            for key, figures in self.found.items():
                f.write(self.line(key, figures))
        os.replace(self.path + ".tmp", self.path)

    @staticmethod
    def line(key, figures):
        return json.dumps(dict(zip(("case", "side", "round"), key), figures=figures)) + "\n"

    def has(self, case, side, round_):
        return (case.name, str(side), round_) in self.found

    def add(self, case, side, round_, figures):
        key = case.name, str(side), round_
        self.found[key] = figures
        with open(self.path, "a") as f:
            f.write(self.line(key, figures))

    def forget(self, names):
        self.found = {k: v for k, v in self.found.items() if k[0] not in names}
        self.rewrite()

    def of(self, case, side, figure):
        """Values by round."""
        return {k[2]: v[figure] for k, v in self.found.items()
                if k[:2] == (case, str(side)) and figure in v}

    def versions(self):
        return {side.split()[0]: f["version"] for (_, side, _), f in self.found.items()}

    def level(self):
        """Of Colibri's kernels; None when no speed was measured."""
        return next((f["level"] for f in self.found.values() if "level" in f), None)


def ratios(ours, theirs):
    """By round: what was measured side by side is compared with each other."""
    return {r: ours[r] / theirs[r] for r in ours if r in theirs}


def median(values):
    return statistics.median(values.values())
