"""How often 95 % intervals hold the truth: resampled texts whose population is known, and populations that are made.

`python -m benchmarks.coverage [--draws N]` measures each head of minilm on every sentence of a treebank, on those of 5
to 60 words alone, on passages of another one, and on paragraphs of a novel. The value over all of them is the truth.
Then 20, 50, 200 and 800 of them are drawn, again and again (with replacement, each draw a text of its own), summed as
`measure` sums texts, and the interval of the table is asked for. A row is a population and a number of texts; `covered`
is the share of the intervals given that hold the truth, over statistics, heads and draws, `given` the share of figures
that have one, and `least` the statistic that is covered least of those that have one in a fiftieth of the draws or
more. `percentile` is what the bootstrap's percentiles, given always, cover: what was shown before.

Populations that are made: cases in texts of lognormal and Pareto sizes, where long texts also have other rates; cases
in a twentieth of the texts; a rate that is high in a twentieth of them. Of means over texts (`effect`, `importance`,
the curve): the change of the loss, or of the embedding, by an ablation on every paragraph, and skewed numbers.

MANYHEADS_GOLD is the folder of the treebanks and the novel. Tables go to stderr, numbers to stdout.
Cost: some ten minutes of one core.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import manyheads as mh
from manyheads.corpora import open_corpus
from manyheads.models import CallTexts, read_batches, read_texts
from manyheads.models.inputs.texts import rarity_table
from manyheads.recording import Sinks
from manyheads.spec import Site
from manyheads.statistics import STATISTICS, HeadTable, Statistic, Sums, mean_interval, survey_syntax, syntax_statistics
from manyheads.statistics.one_batch import Measured
from manyheads.statistics.sinks import find_sinks

TEXTS = (20, 50, 200, 800)
HEADS_APART = 6  # every sixth head: all layers, other places in each
SENTENCE = range(5, 61)  # words
NAMES = (
    *("entropy", "distance", "max_weight", "previous_mass", "offset_+3_mass", "local_mass", "sink_mass", "first_mass"),
    *("separator_mass", "special_mass", "word_top", "punctuation_mass", "number_mass", "capitalised_mass", "rare_mass"),
    *(
        "duplicate_mass",
        "duplicate_mass.uniform",
        "duplicate_mass.relabelled",
        "induction_mass",
        "induction_mass.uniform",
    ),
    *("induction_mass.relabelled", "previous_copy_mass", "rarest_top", "punctuation_norm_mass", "previous_norm_mass"),
)
SYNTAX = ("to_head", "to_head.given", "to_dependent.given", "to_head.relabelled")


class Population(NamedTuple):
    """Numerators and denominators of every text, head and statistic; the truth is their quotient over all texts."""

    name: str
    num: torch.Tensor
    den: torch.Tensor
    statistics: tuple[Statistic, ...]


def measured(name: str, texts: list[Any], chosen: tuple[Statistic, ...]) -> Population:
    """What each of the texts adds, by the library's own reading."""
    lm = mh.load("minilm")
    reading = read_texts(lm, texts, "windows")
    sinks, nums, dens = find_sinks(lm, reading), [], []

    def measuring(tokens: Any) -> Measured:
        return Measured(CallTexts.of(lm, tokens.with_sinks(sinks)), chosen)

    for batch in read_batches(lm, reading, measuring, rarity=rarity_table(reading, lm.spec.vocab_size or 0)):
        part = batch.watcher.contribution(batch.tap)
        nums.append(part.num[:, ::HEADS_APART].double())
        dens.append(part.own_of(range(part.num.shape[2]))[:, ::HEADS_APART].double())
    return Population(name, torch.cat(nums), torch.cat(dens), chosen)


def natural(folder: Path) -> Iterator[Population]:
    """Sentences of a treebank, those of common length, passages of another treebank, a novel's paragraphs."""
    plain = tuple(STATISTICS[name] for name in NAMES)
    for name, file, unit in (
        ("sentences", "en_ewt-ud-dev.conllu", "sentence"),
        ("passages", "en_gum-ud-dev-free.conllu", "passage"),
    ):
        texts = [document for document in open_corpus(folder / file, unit=unit).open() if not document.problem]
        relations = survey_syntax([document.gold for document in texts], 400)
        syntax = (s for s in syntax_statistics(relations) if s.name.partition(".")[2] in SYNTAX)
        population = measured(name, texts, (*plain, *syntax))
        yield population
        if unit == "sentence":
            common = torch.tensor([len(document.gold.words) in SENTENCE for document in texts if document.gold])
            yield population._replace(
                name="sentences of 5 to 60 words", num=population.num[common], den=population.den[common]
            )
    paragraphs = [document for document in open_corpus(folder / "persuasion.txt").open() if not document.problem]
    yield measured("paragraphs of a novel", paragraphs, plain)


def made(rng: np.random.Generator, num_texts: int = 20_000, heads: int = 12) -> Iterator[Population]:
    """Cases whose rates differ from text to text, and, but for the last, are higher or lower in long texts."""
    rare = rng.random(num_texts) < 0.05
    sizes = {
        "sizes lognormal, sigma 1": np.ceil(np.exp(rng.normal(2, 1.0, num_texts))),
        "sizes lognormal, sigma 1.5": np.ceil(np.exp(rng.normal(2, 1.5, num_texts))),
        "sizes Pareto, index 2.5": np.ceil(3 * (1 + rng.pareto(2.5, num_texts))),
        "sizes Pareto, index 1.5": np.ceil(3 * (1 + rng.pareto(1.5, num_texts))),
        "cases in 5 % of texts": np.where(rare, np.ceil(rng.exponential(20, num_texts)), 0.0),
        "high in 5 % of texts": np.full(num_texts, 10.0),
    }
    for name, size in sizes.items():
        log_odds = rng.uniform(-3, 0.5, heads) + rng.normal(0, 0.7, (num_texts, heads))
        if name.startswith("sizes"):
            log_odds += rng.uniform(-0.5, 0.5, heads) * (np.log(size) - 1)[:, None]
        if name.startswith("high"):
            log_odds += 3 * rare[:, None]
        num = size[:, None] / (1 + np.exp(-log_odds))
        den = np.repeat(size[:, None], heads, 1)
        plain = Statistic(name, "share", (0.0, 1.0), "made", name, lambda _: (), lambda _: None)  # pyright: ignore[reportArgumentType]
        yield Population(name, torch.from_numpy(num)[..., None], torch.from_numpy(den)[..., None], (plain,))


def of_ratios(population: Population, num_texts: int, draws: int, rng: np.random.Generator) -> dict[str, Any]:
    """How often the table's intervals hold the quotient over all texts."""
    num, den = population.num, population.den
    truth = (num.sum(0) / den.sum(0)).numpy()
    site = Site("", 0, "layer", num.shape[1], num.shape[1], 8, 8, False)
    held, given, before = (np.zeros((draws, *truth.shape), bool) for _ in range(3))
    for draw in range(draws):
        chosen = torch.from_numpy(rng.integers(0, len(num), num_texts))
        seeds = rng.integers(0, 2**62, num_texts).tolist()  # a text that is drawn twice stands for two
        sums = Sums.of(num[chosen], den[chosen], seeds, 0)
        table = HeadTable((site,), population.statistics, sums, Sinks(), {})
        low, high = (np.stack(ends, -1) for ends in zip(*(table.interval(name) for name in table.names), strict=True))
        given[draw] = ~np.isnan(low)
        held[draw] = (low <= truth + 1e-12) & (truth - 1e-12 <= high)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of figures of which nothing was counted
            first, last = np.nanpercentile(sums.value()[..., 1:], (2.5, 97.5), axis=-1)
        before[draw] = (first <= truth + 1e-12) & (truth - 1e-12 <= last)
    rows = [
        (float(held[..., column][of].mean()), statistic.name)
        for column, statistic in enumerate(population.statistics)
        if (of := given[..., column]).mean() >= 0.02
    ]
    least, which = min(rows, default=(None, ""))
    return {
        "what": f"{population.name}, {num_texts} texts",
        "num_texts": num_texts,
        "covered": float(held[given].mean()) if given.any() else None,
        "given": float(given.mean()),
        "least": least,
        "statistic": which,
        "below_0.92": sum(value < 0.92 for value, _ in rows),
        "statistics": len(rows),
        "percentile": float(before.mean()),
    }


def of_means(name: str, values: np.ndarray, num_texts: int, draws: int, rng: np.random.Generator) -> dict[str, Any]:
    """How often `mean_interval` holds the mean over all texts, of every column."""
    truth, held, given, before = values.mean(0), [], [], []
    for _ in range(draws):
        sample = values[rng.integers(0, len(values), num_texts)]
        low, high = mean_interval(sample)
        given.append(~np.isnan(low))
        held.append((low <= truth) & (truth <= high))
        weights = rng.multinomial(num_texts, np.full(num_texts, 1 / num_texts), 400) / num_texts
        first, last = np.percentile(weights @ sample, (2.5, 97.5), axis=0)
        before.append((first <= truth) & (truth <= last))
    by_column = np.mean(held, 0)
    return {
        "what": f"{name}, {num_texts} texts",
        "num_texts": num_texts,
        "covered": float(np.mean(held)),
        "given": float(np.mean(given)),
        "least": float(by_column.min()),
        "statistic": f"column {int(by_column.argmin())}",
        "below_0.92": int((by_column < 0.92).sum()),
        "statistics": len(by_column),
        "percentile": float(np.mean(before)),
    }


def effects(folder: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Changes by ablation of some heads on paragraphs; skewed numbers."""
    paragraphs = [document.text for document in open_corpus(folder / "persuasion.txt").open() if not document.problem]
    short = [text[:400] for text in paragraphs if len(text) > 40][:500]
    lm = mh.load("minilm")
    plans = [mh.Ablate(head) for head in ("L0H5", "L2H9", "L3H1", "L5H11")]
    yield "ablations, 1 - cosine", np.stack([mh.effect(lm, plan, short, controls=0).per_text for plan in plans], -1)
    rng = np.random.default_rng(5)
    yield "exponential numbers", rng.exponential(size=(20_000, 8))
    yield "lognormal numbers, sigma 1.5", np.exp(rng.normal(0, 1.5, (20_000, 8)))


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coverage", description=__doc__)
    parser.add_argument("--draws", type=int, default=100, help="samples of each size")
    draws = parser.parse_args(argv).draws
    folder = Path(os.environ["MANYHEADS_GOLD"])
    rng = np.random.default_rng(22)
    torch.set_num_threads(1)
    print(f"{'':40}{'covered':>9}{'given':>7}{'before':>8}  covered least", file=sys.stderr)

    def show(row: dict[str, Any]) -> None:
        covered = "-" if row["covered"] is None else f"{row['covered']:.3f}"
        least = "" if row["least"] is None else f"{row['least']:.2f} {row['statistic']}"
        few = f" ({row['below_0.92']} of {row['statistics']} under 0.92)" if row["below_0.92"] else ""
        figures = f"{covered:>9}{row['given']:>7.2f}{row['percentile']:>8.3f}  {least}{few}"
        print(f"{row['what']:40}{figures}", file=sys.stderr, flush=True)
        print(json.dumps(row), flush=True)

    for population in (*natural(folder), *made(rng)):
        for num_texts in TEXTS:
            show(of_ratios(population, num_texts, draws, rng))
    for name, values in effects(folder):
        for num_texts in TEXTS:
            show(of_means(name, values, num_texts, 5 * draws, rng))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
