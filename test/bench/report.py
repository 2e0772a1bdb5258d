"""From samples to the table: medians, spreads, ratios, and what each line must be."""
import re
from dataclasses import dataclass

from engines import CEILINGS
from plan import ALL_INT4, IK_Q4, IK_Q8, INT4, INT8, Q4, Q8
from samples import median, ratios

# Ceilings, measured by the same process as the figure that stands against them.
READ, DOT, FMA = (f"peak_{name}" for name in CEILINGS)

# title, case, ours, theirs, figure, ratio it must be, and where nobody has more than AVX2
AGAINST_LLAMA = (
    ("decode, int8 and Q8_0", "int8", INT8, Q8, "decode", 1.5, 1.3),
    ("decode, int4 and Q4_0", "4bit", INT4, Q4, "decode", 1.5, 1.3),
    ("decode, all int4 and Q4_0", "4bit", ALL_INT4, Q4, "decode", 1.9, 1.3),
    ("prefill of 512, int8 and Q8_0", "int8", INT8, Q8, "prefill", 6, 2),
    ("prefill of 512, int4 and Q4_0", "4bit", INT4, Q4, "prefill", 4, 2),
    ("prefill of 512, all int4 and Q4_0", "4bit", ALL_INT4, Q4, "prefill", 4, 2),
    ("1 thread: decode, int8 and Q8_0", "int8-1", INT8, Q8, "decode", 1.2, 1.2),
    ("1 thread: prefill of 512, int8 and Q8_0", "int8-1", INT8, Q8, "prefill", 4, 2),
    ("4 sequences decoding, int8 and Q8_0", "together-4", INT8, Q8, "decode", None, None),
    ("16 sequences decoding, int8 and Q8_0", "together-16", INT8, Q8, "decode", None, None),
)
AGAINST_IK = (
    ("decode, int8 and Q8_0", "int8", INT8, IK_Q8, "decode", 1.25, 1.25),
    ("decode, int4 and Q4_0", "4bit", INT4, IK_Q4, "decode", None, None),
    ("decode, all int4 and Q4_0", "4bit", ALL_INT4, IK_Q4, "decode", 1.4, 1.4),
    ("prefill of 512, int8 and Q8_0", "int8", INT8, IK_Q8, "prefill", 2, 2),
    ("prefill of 512, int4 and Q4_0", "4bit", INT4, IK_Q4, "prefill", 1.6, 1.6),
    ("prefill of 512, all int4 and Q4_0", "4bit", ALL_INT4, IK_Q4, "prefill", None, None),
)
# title, model, most nats per token, the peer's file beside it
QUALITY = (("KL of int8 from f32", INT8, 0.0028, Q8), ("KL of int4 from f32", INT4, 0.022, Q4),
           ("KL of all int4 from f32", ALL_INT4, 0.045, Q4))
# title, case, side, figure, ceiling, share of it that must be
AGAINST_MACHINE = (
    ("decode, int8: bytes, and what memory streams", "int8", INT8, "decode_gb_per_s", READ, 0.88),
    ("decode, int4", "4bit", INT4, "decode_gb_per_s", READ, 0.8),
    ("decode, all int4", "4bit", ALL_INT4, "decode_gb_per_s", READ, 0.8),
    ("4 sequences decoding, int8", "together-4", INT8, "decode_gb_per_s", READ, 0.85),
    ("16 sequences decoding, int8", "together-16", INT8, "decode_gb_per_s", READ, 0.85),
    ("prefill of 512, int8: products, and the int8 peak", "int8", INT8, "prefill_gmac_per_s", DOT, 0.48),
    ("prefill of 512, int4", "4bit", INT4, "prefill_gmac_per_s", DOT, None),
    ("experts in prefill of 512, int8", "int8", INT8, "prefill_experts_gmac_per_s", DOT, 0.7),
    ("experts in prefill of 512, int4", "4bit", INT4, "prefill_experts_gmac_per_s", DOT, 0.6),
    ("attention in prefill of 4096: products, and the f32 peak", "long", INT8,
     "prefill_attention_gmac_per_s", FMA, 0.55),
)
HEADINGS = ("figure", "Colibri", "beside it", "ratio", "must be", "")


@dataclass
class Row:
    figure: str
    ours: str = ""
    beside: str = ""
    ratio: str = ""
    need: str = ""
    met: bool = None

    def cells(self):
        return (self.figure, self.ours, self.beside, self.ratio, self.need,
                "" if self.met is None else "met" if self.met else "missed")


@dataclass
class About:
    """What stands above the table."""
    machine: dict
    versions: dict
    command: str
    ik_flags: str

    def lines(self, level):
        m = self.machine
        engines = [f"{name} {version}" + (f" (`{self.ik_flags}`)" if name.startswith("ik") else "")
                   for name, version in self.versions.items()]
        return [f"{m['date']}, {m['processor']}, {m['cores']} cores, {m['memory']}"
                f"{', kernels for ' + level if level else ''}; {m['system']}, Linux {m['kernel']}, {m['compiler']}.",
                f"{', '.join(engines)}.",
                f"`{self.command}`, {m['minutes']} minutes; load {m['load']}; {m['others']}."]


def number(x):
    return f"{x:.3g}" if abs(x) < 100 else f"{x:.0f}"


def spread(values, unit="", show=number):
    """Median, and from where to where."""
    text = show(median(values))
    if len(values) > 1:
        text += f" ({show(min(values.values()))}–{show(max(values.values()))})"
    return f"{text} {unit}".rstrip()


def factor(x):
    return f"{x:.2f}"


class Report:
    def __init__(self, samples, about):
        self.samples, self.about = samples, about.lines(samples.level())
        self.avx2 = samples.level() == "avx2"

    # -- rows ------------------------------------------------------------------------

    def versus(self, spec):
        title, case, ours, theirs, figure, need, need_avx2 = spec
        a, b = (self.samples.of(case, side, figure) for side in (ours, theirs))
        if a and b:
            need = need_avx2 if self.avx2 else need
            yield self.ratio_row(title, a, b, "tokens/s", need)

    @staticmethod
    def ratio_row(title, ours, beside, unit, need):
        ratio = ratios(ours, beside)
        return Row(title, spread(ours, unit), spread(beside, unit), spread(ratio, show=factor),
                   f"≥ {need:g}" if need else "", median(ratio) >= need if need else None)

    def demo(self):
        """A tiny model may be faster with one thread: each engine with what suits it."""
        def best(side):
            both = [self.samples.of(case, side, "decode") for case in ("demo-1", "demo")]
            return max((v for v in both if v), key=median, default=None)
        ours, theirs = best(INT8), best(Q8)
        if ours and theirs:
            yield self.ratio_row("decode of the bundled model, int8 and Q8_0", ours, theirs,
                                 "tokens/s", 3)

    def ceilings(self):
        for title, case, side, figure, ceiling, need in AGAINST_MACHINE:
            a, b = (self.samples.of(case, side, f) for f in (figure, ceiling))
            if a:
                unit = "GB/s" if ceiling == READ else "GMAC/s"
                yield self.ratio_row(title, a, b, unit, need)

    def quality(self):
        for title, ours, most, peer in QUALITY:
            a, b = (self.samples.of("quality", side, "kl") for side in (ours, peer))
            if a:
                yield Row(title, f"{median(a):.4f}", f"{peer} {median(b):.4f}" if b else "", "",
                          f"≤ {most:g}", median(a) <= most)

    def lengths(self):
        """Long contexts: what they cost, and what the KV cache explains of it."""
        long, short = (self.samples.of(c, INT8, "decode") for c in ("long", "short"))
        if not long:
            return
        yield Row("prefill of 4096, int8", spread(self.samples.of("long", INT8, "prefill"), "tokens/s"))
        if short:
            bytes_ = [median(self.samples.of(c, INT8, "decode_step_bytes")) for c in ("short", "long")]
            ratio = ratios(long, short)
            share = median(ratio) / (bytes_[0] / bytes_[1])
            yield Row(f"decode at 4096 and at 64 tokens, int8 ({bytes_[1] / 1e6:.0f} and "
                      f"{bytes_[0] / 1e6:.0f} MB a token)", spread(long, "tokens/s"),
                      spread(short, "tokens/s"), spread(ratio, show=factor),
                      f"≥ {0.85 * bytes_[0] / bytes_[1]:.2f}", share >= 0.85)

    def threads(self):
        """What all threads give over one: decoding can only gain what reading memory gains."""
        gain = {name: ratios(*(self.samples.of(c, INT8, name) for c in ("int8", "int8-1")))
                for name in ("decode", "prefill")}
        if gain["decode"]:
            read = ratios(*(self.samples.of(c, INT8, READ) for c in ("int8", "int8-1")))
            yield self.ratio_row("all threads over one: decode, and what memory streams",
                                 gain["decode"], read, "", 0.95)
        if gain["prefill"]:
            yield Row("all threads over one: prefill", spread(gain["prefill"]), "", "", "≥ 1.9",
                      median(gain["prefill"]) >= 1.9)

    def programs(self):
        start = self.samples.of("start", INT8, "seconds")
        if start:
            start = {r: 1e3 * v for r, v in start.items()}
            yield Row("start to first token, without the pass", spread(start, "ms"), "", "", "≤ 20 ms",
                      median(start) <= 20)
        read, plain, peak = (self.samples.of("convert", INT8, f)
                             for f in ("read_per_s", "plain_share", "peak"))
        if read:
            yield Row("conversion of cached bf16 to int8, and just writing the result",
                      spread(read, "GB/s"), "", spread(plain, show=factor), "≥ 1.5 GB/s or ≥ 0.9",
                      median(read) >= 1.5 or median(plain) >= 0.9)
            yield Row("memory of conversion", spread(peak, "MB", lambda x: f"{x / 1e6:.0f}"), "", "",
                      "< 512 MB", median(peak) < 512e6)

    def groups(self):
        limits = ", both without AVX-512 and VNNI" if self.avx2 else ""
        yield "llama.cpp" + limits, [*(r for spec in AGAINST_LLAMA for r in self.versus(spec)),
                                     *self.demo()]
        yield "ik_llama.cpp", [r for spec in AGAINST_IK for r in self.versus(spec)]
        yield "this machine", [*self.ceilings(), *self.threads(), *self.lengths(), *self.programs()]
        yield "quality", list(self.quality())

    # -- text ------------------------------------------------------------------------

    def table(self):
        rows = []
        for heading, members in self.groups():
            if members:
                rows += [Row(f"**{heading}**").cells(), *(m.cells() for m in members)]
        return aligned([HEADINGS, *rows]) if rows else ["Nothing was measured."]

    def summary(self):
        """For people who want to know whether it is worth a try: the other engines."""
        rows = []
        for heading, members in self.groups():
            if members and "llama.cpp" in heading:
                rows += [Row(f"**{heading}**").cells()[:4], *(m.cells()[:4] for m in members)]
        return aligned([HEADINGS[:4], *rows])

    def text(self):
        return "\n".join([*self.about, "", *self.table()])

    def write(self, path):
        """Replaces what stands between the marks in a document."""
        parts = {"table": "\n\n".join(self.about) + "\n\n" + "\n".join(self.table()),
                 "summary": self.about[0] + "\n\n" + "\n".join(self.summary())}
        with open(path) as f:
            old = f.read()
        new, n = re.subn(r"(<!-- make bench: (\w+) -->\n).*?(\n<!-- end -->)",
                         lambda m: m[1] + "\n" + parts[m[2]] + "\n" + m[3], old, flags=re.S)
        if not n:
            raise OSError(f"{path}: no line '<!-- make bench: table -->' to write behind")
        with open(path, "w") as f:
            f.write(new)


def aligned(rows):
    """A Markdown table whose columns also stand in line on a terminal."""
    width = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, width)) + " |" for row in rows]
    return [lines[0], "|" + "|".join("-" * (w + 2) for w in width) + "|", *lines[1:]]
