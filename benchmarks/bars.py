"""What the benchmarks must reach: one table, and how a figure is found in what a benchmark printed.

Bars were set before anything was measured against them; `make bench-check` holds benchmarks/results.json to them, not
to the last run. docs/lab.md has how each was reached, or missed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SPREADS = (("low", "high"), ("least", "most"))
"""What a benchmark calls the least and the most that it saw, beside a median."""


@dataclass(frozen=True)
class Bar:
    """The number at the dotted path `figure`, in the line of benchmark `run` that is about `line`: what it calls
    "what", or its number of tokens (None: its only line). The bar is `most`, `least`, or from one to the other."""

    run: str
    line: str | int | None
    figure: str
    what: str
    most: float | None = None
    least: float | None = None
    unit: str = "x"
    beside: tuple[str, ...] = ()
    """Further figures of the line, by paths that begin with what they are, shown beside this one where they are."""

    @property
    def limit(self) -> str:
        if self.most is not None and self.least is not None:
            return f"{short(self.least)} to {short(self.most)} {self.unit}".rstrip()
        side, number = ("at most", self.most) if self.most is not None else ("at least", self.least)
        return f"{side} {short(number)} {self.unit}".rstrip()

    def holds(self, value: float) -> bool:
        """Whether the figure reaches the bar; what is not a number does not."""
        return (self.most is None or value <= self.most) and (self.least is None or value >= self.least)


@dataclass(frozen=True)
class Judged:
    """A bar and what was measured, with its spread where it tells; None where there is no result."""

    bar: Bar
    value: float | None
    spread: tuple[float, float] | None
    beside: Mapping[str, float] = field(default_factory=dict)

    @property
    def met(self) -> bool:
        return self.value is not None and self.bar.holds(self.value)

    @property
    def verdict(self) -> str:
        return "not measured" if self.value is None else "met" if self.met else "missed"

    @property
    def measured(self) -> str:
        if self.value is None:
            return "-"
        spread = f" ({'-'.join(map(short, self.spread))})" if self.spread else ""
        others = "".join(f"; {name} {short(value)}" for name, value in self.beside.items())
        return f"{short(self.value)}{spread} {self.bar.unit}".rstrip() + others


def short(number: float | None) -> str:
    """Three digits, or a whole number with its thousands marked."""
    return f"{number:,.0f}" if number is not None and abs(number) >= 1_000 else f"{number:.3g}"


def _passes() -> Iterator[Bar]:
    bars = {(4_096, "default"): 1.7, (4_096, "all"): 2.0, (8_192, "default"): 2.2, (8_192, "all"): 2.5}
    for (tokens, name), most in bars.items():
        said = f'"{name}" statistics of every head with the pass, against the pass, {tokens:,} tokens'
        yield Bar("statistics_pass", tokens, f"{name}.ratio", said, most)
    for tokens in (4_096, 8_192):
        said = f'distant_mass of every head, against "default" statistics, {tokens:,} tokens'
        yield Bar("statistics_pass", tokens, "distant_over_default.ratio", said, 1.0)


def _tax() -> Iterator[Bar]:
    three, model = "three statistics", "30 layers of 9 heads of 64"
    paragraphs = f"12 paragraphs of 127 tokens, {model}"
    unlike = f"12 texts of 55 to 166 tokens, {model}"
    longer = {512: 1.15, 2_048: 1.2}
    for line, name, what, most in (
        ("paragraphs", "three", f"{three}, {paragraphs}", 1.1),
        ("paragraphs", "sinks", f"the same and one of sinks, {paragraphs}", 1.15),
        ("paragraphs", "all", f'"all" statistics, {paragraphs}', 1.3),
        ("paragraphs", "record", f"`record`, {paragraphs}", 1.1),
        ("unlike", "three", f"{three}, {unlike}", 1.1),
        ("unlike", "default", f'"default" statistics, {unlike}', 1.2),
        *((str(n), "three", f"{three}, one text of {n:,} tokens, {model}", most) for n, most in longer.items()),
        ("4096", "default", '"default" statistics, one text of 4,096 tokens, 4 layers of 12 heads of 64', 1.25),
    ):
        peers = ("eager maps.ratio", "TransformerLens.ratio") if name == "three" else ()
        yield Bar("tax", line, f"{name}.ratio", f"{what}, against the plain pass", most, beside=peers)


def _layer() -> Iterator[Bar]:
    for mode in ("eval, no gradient", "train, forward", "train, forward + backward"):
        line = f"(8, 512, 512), 8 heads, {mode}"
        yield Bar("layer", line, "ratio.linear + sdpa", f"the layer, {line}, against linear maps and sdpa", 1.05)
    line = "one token, 32 query heads on 8 of 128, 32,768 cached, float32"
    for peer, most in {"sdpa, enable_gqa": 0.6, "sdpa, k and v repeated": 0.1, "copy of k": 2.0}.items():
        yield Bar("layer", line, f"ratio.{peer}", f"{line}, against {peer}", most)
    line = "weights of one head of 12, (8, 512, 768)"
    yield Bar("layer", line, "ratio.no weights", f"{line}, against none", 1.2)


def _watching() -> Iterator[Bar]:
    steps = {
        "watch, a step that is not watched": ("inside a watch, a step that is not watched", 1.01),
        "max_logit": ("a watched step, max_logit alone", 1.1),
        "max_logit, entropy, first_mass": ("a watched step, max_logit, entropy and first_mass", 1.4),
        "the same, rows=256": ("the same with rows=256", 1.15),
        "every=50": ("over all with every=50", 1.01),
    }
    for state in ("random", "sharp"):
        for line, (what, most) in steps.items():
            yield Bar("watching", f"{state}: {line}", "ratio", f"{what}, {state} scores, against no watch", most)
    figure = "added.max_logit, entropy, first_mass"
    for state in ("random", "sharp"):
        what = f"memory that a watch adds, {state} scores"
        yield Bar("watching_memory", f"{state}: memory", figure, what, 0.02, unit="")


def _studio() -> Iterator[Bar]:
    yield Bar("studio", None, "first_view_seconds.median", "first view of all 72 maps, 510 tokens", 1.0, unit="s")
    yield Bar("studio", None, "first_view_bytes", "the first view", 1e6, unit="bytes")
    yield Bar("studio", None, "javascript_gzip_bytes", "JavaScript, compressed", 360e3, unit="bytes")
    yield Bar("studio", None, "full_tile_seconds.p95", "a full tile, 95th percentile", 0.05, unit="s")
    yield Bar("studio", None, "pooled_tile_seconds_8192.median", "a pooled tile of 8,192 tokens", 0.3, unit="s")
    yield Bar("studio", None, "file_bytes", "one file of 512 tokens", 3e6, unit="bytes")


def _streaming() -> Iterator[Bar]:
    line = "one token, 32 query heads on 8 of 128, 32,768 cached, float32"
    said = f"{line}, half of the key/value heads streaming, against"
    yield Bar("streaming", line, "over_full.ratio", f"{said} none", 0.6)
    yield Bar("streaming", line, "processor_over_full.ratio", "the same in seconds of one processor, against none", 0.6)
    yield Bar("streaming", line, "over_stock.ratio", f"{said} transformers' own cache", 0.6)
    yield Bar("streaming", line, "floor", "the cache's bytes of it, against none streaming", 0.51)


UNLIKE = "texts of 8 to 128 tokens against equal ones"


def _coverage() -> Iterator[Bar]:
    natural = ("sentences", "sentences of 5 to 60 words", "passages", "paragraphs of a novel")
    made = (
        "sizes lognormal, sigma 1",
        "sizes lognormal, sigma 1.5",
        "sizes Pareto, index 2.5",
        "sizes Pareto, index 1.5",
    )
    few = ("cases in 5 % of texts",)  # too few cases for any interval below 200 texts
    means = ("ablations, 1 - cosine", "exponential numbers", "lognormal numbers, sigma 1.5")
    differences = [f"{kind}, {name}" for kind in ("changes", "above chance") for name in natural]
    for name in (*natural, *differences, *made, *few, "high in 5 % of texts", *means):
        for count in (200, 800) if name in few else (20, 50, 200, 800):
            line, what = f"{name}, {count} texts", "intervals that hold the truth"
            if count >= 50 and name in (*natural, *differences):
                yield Bar("coverage", line, "covered", f"{what}: {line}", most=0.97, least=0.93, unit="")
                wide = f"their width, against bootstrap-t's that holds it as often: {line}"
                yield Bar("coverage", line, "width", wide, most=1.25)
            else:
                yield Bar("coverage", line, "covered", f"{what}: {line}", least=0.92, unit="")


def _cuda() -> Iterator[Bar]:
    for tokens, default, everything in ((8_192, 1.15, 1.3), (32_768, 1.4, 1.7), (131_072, 1.8, 2.3)):
        line = f"statistics, {tokens:,} tokens"
        for name, most in {"default": default, "all": everything}.items():
            what = f'layers of an 8 B Llama with "{name}" {line}, against their forward'
            yield Bar("cuda", line, f"{name}.ratio", what, most)
    what = "memory that statistics of 131,072 tokens add"
    yield Bar("cuda", "memory, 131,072 tokens", "extra_gb", what, 1.0, unit="GB")
    for tokens in (8_192, 32_768):
        line = f"the pass alone, {tokens:,} tokens"
        for name, most in {"shape": 1.0, "all": 1.8}.items():
            yield Bar("cuda", line, f"{name}.ratio", f"{line}, {name} requests, against sdpa", most)


BARS: Sequence[Bar] = (
    *_tax(),
    *_passes(),
    Bar("statistics_pass", 8_192, "extra_gb", 'memory that "all" statistics add, 8,192 tokens', 0.3, unit="GB"),
    Bar("long", 16_384, "peak_gb.all", 'memory of a process with "all" statistics, 16,384 tokens', 3.0, unit="GB"),
    Bar("startup", None, "look.median", "`manyheads look`, loading included", 10.0, unit="s"),
    Bar("startup", None, "import_seconds", "`import manyheads`, beyond Python's own start", 0.1, unit="s"),
    *_layer(),
    Bar("ragged", "measure", "over_forward.ratio", f"`measure`, {UNLIKE}, beyond the forward pass's", 1.15),
    Bar("busy", "alone", "ratio", "`record` as the command runs it, against threads that spin", 1.05),
    Bar(
        "busy",
        "the command: busy over alone",
        "ratio",
        "the same beside as many busy processes as cores, against alone",
        3,
    ),
    *_coverage(),
    Bar(
        "int8_cache",
        1024,
        "same_next_token",
        "tokens whose likeliest next one stays on an int8 cache",
        least=0.98,
        unit="",
    ),
    Bar("int8_cache", 1024, "loss_change", "what an int8 cache adds to tiny-code's loss", 0.005, unit="nats"),
    Bar("int8_cache", 1024, "ratio", "the int8 caches, against float32", 0.27),
    *_streaming(),
    Bar("importance", None, "ratio", "effects of 72 heads on 200 sentences, against 72 forward passes", 0.65),
    Bar("head_split", None, "ratio", "effects of 24 groups that stream, against 24 forward passes", 0.65),
    Bar("patching", "patching", "ratio", "patching all heads of one pair, against a forward pass a head", 0.65),
    Bar("circuits", "composition", "seconds", "composition of 32 layers of 32 heads of 64, all pairs", 60, unit="s"),
    Bar("circuits", "attribution", "ratio", "logit attribution by head and key, against a forward pass", 1.3),
    Bar(
        "circuits", "trained", "named", "of 12 answers about trained induction heads, the right ones", least=12, unit=""
    ),
    Bar("pruning", "attention layers", "times_as_fast", "attention layers with half of their heads", least=1.5),
    Bar("pruning", "cache", "ratio", "the cache with half of the heads", 0.5),
    Bar("roles", "roles", "ratio", "sentences a second of all roles, against the pass", least=0.4),
    Bar("roles", "two processes", "ratio", "all roles by two processes, against one that is held to a core", least=1.6),
    Bar("roles", "growth", "ratio", "memory of all roles on 100,000 sentences, against 1,000", 1.15),
    Bar("known_answers", "without noise", "recall", "recall of planted roles, the worst", least=0.98, unit=""),
    Bar("known_answers", "without noise", "precision", "precision of planted roles, the worst", least=0.98, unit=""),
    Bar("known_answers", "random weights", "share", "random heads with a content label", 0.001, unit=""),
    Bar("compat", None, "largest", "largest difference from TransformerLens' head detector", 1e-5, unit=""),
    Bar("compat", None, "circuits", "the same of its patching, attribution and composition", 1e-4, unit=""),
    Bar("training", "induction", "seconds", "`manyheads train induction`", 300, unit="s"),
    Bar("training", "induction", "induction", "its induction mass, best head of layer 1", least=0.9, unit=""),
    Bar("training", "tiny-code", "times_null", "tiny-code's induction over its null, held-out first repeats", least=5),
    Bar("training", "quick", "slowest", "`--quick` of the slowest preset", 60, unit="s"),
    *_watching(),
    *_studio(),
    *_cuda(),
)


def judged(results: Mapping[str, Any]) -> list[Judged]:
    """Every bar with its figure, in the table's order."""
    return [_judged(bar, results.get(bar.run, {}).get("lines", ())) for bar in BARS]


def _judged(bar: Bar, lines: Sequence[Mapping[str, Any]]) -> Judged:
    line = next((each for each in lines if bar.line is None or bar.line in (each.get("what"), each.get("tokens"))), {})
    holder, last = _holder(line, bar.figure)
    seen = [tuple(float(holder[end]) for end in ends) for ends in SPREADS if all(end in holder for end in ends)]
    beside = {path.partition(".")[0]: _holder(line, path) for path in bar.beside}
    return Judged(
        bar,
        float(holder[last]) if last in holder else None,
        seen[0] if seen else None,  # type: ignore[arg-type]
        {name: float(inner[key]) for name, (inner, key) in beside.items() if key in inner},
    )


def _holder(line: Mapping[str, Any], path: str) -> tuple[Mapping[str, Any], str]:
    """What holds the figure at a dotted path (empty where the line has no such thing), and the figure's name in it."""
    *above, last = path.split(".")
    for key in above:
        line = line.get(key, {})
    return line, last
