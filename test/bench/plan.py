"""What is measured: cases, and in each case who takes part."""
from dataclasses import dataclass

COLIBRI, LLAMA, IK = "Colibri", "llama.cpp", "ik_llama.cpp"

# Files of the models by name: options of colibri-convert, and the peers' types.
CONVERTED = {
    "int8": "--dtype int8",
    "int4": "--dtype int4",
    "all-int4": "--dtype int4 --dense-dtype int4",
    "f32": "--dtype f32",  # the truth of quality
}
QUANTISED = {"Q8_0": "q8_0", "Q4_0": "q4_0"}


@dataclass(frozen=True)
class Side:
    engine: str
    model: str

    def __str__(self):
        return f"{self.engine} {self.model}"


@dataclass(frozen=True)
class Case:
    name: str
    sides: tuple
    kind: str = "speed"
    source: str = "random"  # which checkpoint: random or demo
    threads: int = 0        # 0: all cores
    prompt: int = 0
    decode: int = 0
    sequences: int = 1
    repeats: int = 1        # of what is short: their median counts
    every: int = 1          # takes part in every so many rounds; 0: in the first only

    def runs_in(self, round_):
        return round_ == 1 if not self.every else (round_ - 1) % self.every == 0


INT8, INT4, ALL_INT4 = (Side(COLIBRI, m) for m in ("int8", "int4", "all-int4"))
Q8, Q4 = Side(LLAMA, "Q8_0"), Side(LLAMA, "Q4_0")
IK_Q8, IK_Q4 = Side(IK, "Q8_0"), Side(IK, "Q4_0")

# Conversion first, because it fills the page cache; then what is short, so that a run that is cut off has much.
CASES = (
    Case("convert", (INT8,), "convert", every=0),
    Case("quality", (INT8, INT4, ALL_INT4, Q8, Q4), "quality", "demo", every=0),
    Case("demo-1", (INT8, Q8), source="demo", threads=1, prompt=64, decode=128, repeats=9),
    Case("demo", (INT8, Q8), source="demo", prompt=64, decode=128, repeats=9),
    Case("int8", (INT8, Q8, IK_Q8), prompt=512, decode=64),
    Case("start", (INT8,), "start"),
    Case("4bit", (INT4, ALL_INT4, Q4, IK_Q4), prompt=512, decode=64),
    Case("int8-1", (INT8, Q8), threads=1, prompt=512, decode=32),
    Case("together-4", (INT8, Q8), prompt=16, decode=16, sequences=4),
    Case("together-16", (INT8, Q8), prompt=16, decode=16, sequences=16),
    Case("short", (INT8,), prompt=64, decode=64),
    Case("long", (INT8,), prompt=4096, decode=32, every=2),
)


def tiny(case):
    """The same with a few tokens: to try the driver, not the engines."""
    few = {"prompt": min(case.prompt, 96) // 8, "decode": min(case.decode, 3)}
    return Case(**{**case.__dict__, **few})
