"""How often 95 % intervals hold the truth, and how wide they are: texts drawn from populations whose truth is known.

`python -m benchmarks.coverage [--draws N]` measures each head of minilm on every sentence of a treebank, on those of 5
to 60 words alone, on passages of another one, and on paragraphs of a novel. The value over all of them is the truth.
Then 20, 50, 200 and 800 of them are drawn, again and again (with replacement, each draw a text of its own), summed as
`measure` sums texts, and the interval of the table is asked for. A row is a population and a number of texts; `covered`
is the share of the intervals given that hold the truth, over statistics, heads and draws, `given` the share of figures
that have one, and `least` the statistic that is covered least of those that have one in a fiftieth of the draws or
more. `percentile` is what the bootstrap's percentiles, given always, cover.

Widths are beside those of a studentised bootstrap (bootstrap-t), which draws the texts of a sample anew, 400 times, and
needs all of them: every fourth draw has one. `studentised` is what it covers of the intervals given. `width` is ours
over its, the median, at the level at which its intervals cover as often as ours do: neither is narrower for holding
the truth less often. `width_95` is the same at its own 95 %, `width_delta` over the delta method's 1.96 errors;
`bounded` is the share of intervals given for which it has a finite one: where few texts differ, many resamples have
none that does, and the width is of the others.

Of differences, in the same draws: `changes` of a statistic between minilm and a copy with noise in its layers' matrices
(a tenth of each one's spread), by `Comparison.interval`, as `compare` shows them; and scores `above chance`, by every
rule and chance level that these texts ask about, by `Half.above`, as `roles` shows them. These are of the reporting
half, so of half as many texts as the row says.

Populations that are made: cases in texts of lognormal and Pareto sizes, where long texts also have other rates; cases
in a twentieth of the texts; a rate that is high in a twentieth of them. Of means over texts (`effect`, `importance`,
the curve): the change of the loss, or of the embedding, by an ablation on every paragraph, and skewed numbers.

MANYHEADS_GOLD is the folder of the treebanks and the novel. Tables go to stderr, numbers to stdout.
Cost: some thirty minutes of one core.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import manyheads as mh
from manyheads.corpora import open_corpus
from manyheads.inputs import read
from manyheads.measurement import by_model, sums_of
from manyheads.measurement.sinks import find_sinks
from manyheads.roles.claims import REPORT, Half
from manyheads.roles.compare import Comparison
from manyheads.roles.rules import FIXED_RULES, rule_of, syntax_rules
from manyheads.spec import Site
from manyheads.statistics import STATISTICS, HeadTable, Statistic, Sums, mean_interval
from manyheads.statistics.defined import survey_syntax, syntax_statistics
from manyheads.texts import Sinks

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
RULES = tuple(rule for rule in FIXED_RULES.values() if rule.tested in STATISTICS)
TWINS = tuple(name for rule in RULES for name in (rule.tested, *(f"{rule.statistic}.{way}" for way in rule.chances)))
NOISE = 0.1  # of a matrix's spread, added to it: the other model
RESAMPLES = 400  # of a studentised bootstrap
STUDENTISED_EVERY = 4  # draws
LEVELS = np.array(
    [0.3, 0.2, 0.15, 0.1, 0.08, 0.06, 0.05, 0.04, 0.03, 0.02, 0.015, 0.01, 0.005]
)  # outside of an interval
SYNTAX = ("to_governor", "to_governor.given", "to_dependent.given", "to_governor.relabelled")


class Drawn(NamedTuple):
    """Numerators and denominators `[text, head, statistic]` of a draw by each model, and the half that a text is in."""

    parts: list[tuple[np.ndarray, np.ndarray]]
    half: np.ndarray


class Population(NamedTuple):
    """Numerators and denominators of every text, head and statistic; the truth is their quotient over all texts.

    `changed`: the same of the same texts, read by another model. `names`: the statistics of which rows are made.
    """

    name: str
    num: torch.Tensor
    den: torch.Tensor
    statistics: tuple[Statistic, ...]
    names: tuple[str, ...]
    changed: tuple[torch.Tensor, torch.Tensor] | None = None

    def of(self, texts: torch.Tensor, name: str) -> Population:
        """Some of its texts."""
        changed = None if self.changed is None else (self.changed[0][texts], self.changed[1][texts])
        return self._replace(name=name, num=self.num[texts], den=self.den[texts], changed=changed)

    def tables(self, num_texts: int, rng: np.random.Generator) -> tuple[list[HeadTable], Drawn]:
        """Tables of texts that are drawn, of the model and of the other one; and which texts these are."""
        texts = torch.from_numpy(rng.integers(0, len(self.num), num_texts))
        seeds = rng.integers(0, 2**62, num_texts).tolist()  # a text that is drawn twice stands for two
        site = Site("", 0, "layer", self.num.shape[1], self.num.shape[1], 8, 8, False)
        read = [(self.num, self.den), *([] if self.changed is None else [self.changed])]
        drawn = [(num[texts], den[texts]) for num, den in read]
        tables = [HeadTable((site,), self.statistics, Sums.of(*part, seeds, 0), Sinks(), {}) for part in drawn]
        return tables, Drawn([(num.numpy(), den.numpy()) for num, den in drawn], np.array(seeds) & 1)


def measured(name: str, texts: list[Any], plain: Sequence[str], syntax: Sequence[Statistic] = ()) -> Population:
    """What each of the texts adds, by the library's own reading; rows are made of `NAMES` and `SYNTAX`."""
    lm = mh.load("minilm")
    noisy: Any = copy.deepcopy(lm.model)
    noise = torch.Generator().manual_seed(1)
    for parameter in noisy.encoder.layer.parameters():
        if parameter.ndim == 2:
            parameter.data += NOISE * parameter.std() * torch.randn(parameter.shape, generator=noise)
    chosen, sums = (*(STATISTICS[one] for one in plain), *syntax), []
    sinks = find_sinks(read(lm, texts))
    for model in (lm, replace(lm, model=noisy)):
        nums, dens = [], []
        for part in sums_of(by_model(model), read(model, texts).batches(), chosen, sinks=sinks):
            nums.append(part.num[:, ::HEADS_APART].double())
            dens.append(part.own_of(range(len(chosen)))[:, ::HEADS_APART].double())
        sums.append((torch.cat(nums), torch.cat(dens)))
    names = (*NAMES, *(one.name for one in syntax if one.name.partition(".")[2] in SYNTAX))
    (num, den), changed = sums
    return Population(name, num, den, chosen, names, changed)


def natural(folder: Path) -> Iterator[Population]:
    """Sentences of a treebank, those of common length, passages of another treebank, a novel's paragraphs."""
    plain = tuple(dict.fromkeys((*NAMES, *TWINS)))
    for name, file, unit in (
        ("sentences", "en_ewt-ud-dev.conllu", "sentence"),
        ("passages", "en_gum-ud-dev-free.conllu", "passage"),
    ):
        texts = [document for document in open_corpus(folder / file, unit=unit).open() if not document.problem]
        relations = survey_syntax([document.gold for document in texts], 400)
        asked = {name for rule in syntax_rules([relation.name for relation in relations]) for name in rule.needed}
        syntax = [s for s in syntax_statistics(relations) if s.name in asked or s.name.partition(".")[2] in SYNTAX]
        population = measured(name, texts, plain, syntax)
        yield population
        if unit == "sentence":
            common = torch.tensor([len(document.gold.words) in SENTENCE for document in texts if document.gold])
            yield population.of(common, "sentences of 5 to 60 words")
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
        yield Population(name, torch.from_numpy(num)[..., None], torch.from_numpy(den)[..., None], (plain,), (name,))


class Question(NamedTuple):
    """What is asked of every draw: of each head and `names`, both ends of the interval and what percentiles are of.

    `texts` are the numerators and denominators of the figure, or of the two whose difference it is, text by text.
    """

    what: str
    names: Sequence[str]
    truth: np.ndarray
    ends: Callable[[list[HeadTable]], Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]]
    texts: Callable[[Drawn], list[tuple[np.ndarray, np.ndarray]]]


class Studentised(NamedTuple):
    """A studentised bootstrap of figures `[head, name]`: resamples' pivots in order, and the figure with its error."""

    pivots: np.ndarray
    value: np.ndarray
    error: np.ndarray

    @staticmethod
    def of(parts: list[tuple[np.ndarray, np.ndarray]], rng: np.random.Generator) -> Studentised:
        """Of N / D, or of the difference N / D - M / E, over texts: the delta method's error in every resample."""
        num_texts, *shape = parts[0][0].shape
        flat = [(n.reshape(num_texts, -1), d.reshape(num_texts, -1)) for n, d in parts]
        once = np.ones((1, num_texts))
        drawn = rng.multinomial(num_texts, np.full(num_texts, 1 / num_texts), RESAMPLES).astype(float)
        (value, error), (values, errors) = (ratio_and_error(weights, flat) for weights in (once, drawn))
        with np.errstate(invalid="ignore", divide="ignore"):
            # A resample in which all texts agree is infinitely far from the sample, on the side where it is.
            pivots = np.where(errors > 1e-7 * error, (values - value) / errors, np.sign(values - value) * np.inf)
        pivots = np.sort(np.where(np.isnan(pivots), 0.0, pivots), 0)
        return Studentised(pivots.reshape(-1, *shape), value.reshape(shape), error.reshape(shape))

    def widths(self) -> np.ndarray:
        """How wide its intervals are, for each of `LEVELS`."""
        last = len(self.pivots) - 1
        low, high = (np.round(last * side).astype(int) for side in (LEVELS / 2, 1 - LEVELS / 2))
        with np.errstate(invalid="ignore"):
            return self.error * (self.pivots[high] - self.pivots[low])

    def level(self, truth: np.ndarray) -> np.ndarray:
        """The level up to which the interval holds the truth: it does at every one of `LEVELS` that is no larger."""
        with np.errstate(invalid="ignore", divide="ignore"):
            place = (self.value - truth) / self.error
        below = ((self.pivots < place).mean(0) + (self.pivots <= place).mean(0)) / 2
        return 2 * np.minimum(below, 1 - below)


def ratio_and_error(weights: np.ndarray, parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """The ratio, or the difference of two, and the delta method's error, for each row of weights of the texts."""
    with np.errstate(invalid="ignore", divide="ignore"):
        sums = [(weights @ n, weights @ d) for n, d in parts]
        ratios = [n / d for n, d in sums]
        square = sum(
            (weights @ (n * n) - 2 * r * (weights @ (n * d)) + r * r * (weights @ (d * d))) / total**2
            for (n, d), (_, total), r in zip(parts, sums, ratios, strict=True)
        )
        if len(parts) == 1:
            return ratios[0], np.sqrt(np.maximum(square, 0.0))
        (n, d), (m, e) = parts
        r, s = ratios
        both = weights @ (n * m) - r * (weights @ (d * m)) - s * (weights @ (n * e)) + r * s * (weights @ (d * e))
        return r - s, np.sqrt(np.maximum(square - 2 * both / (sums[0][1] * sums[1][1]), 0.0))


def questions(population: Population) -> Iterator[Question]:
    """Values; of what another model read, too, changes; of what has chance levels, how far above chance it is."""
    place = {statistic.name: column for column, statistic in enumerate(population.statistics)}
    truth = (population.num.sum(0) / population.den.sum(0)).numpy()
    names = population.names
    columns = [place[name] for name in names]

    def values(tables: list[HeadTable]) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        replicates = tables[0].sums.value()
        for name in names:
            yield *tables[0].interval(name), replicates[:, place[name], 1:]

    def of_values(drawn: Drawn) -> list[tuple[np.ndarray, np.ndarray]]:
        return [(num[..., columns], den[..., columns]) for num, den in drawn.parts[:1]]

    yield Question("", names, truth[:, columns], values, of_values)
    if population.changed is None:
        return
    other = (population.changed[0].sum(0) / population.changed[1].sum(0)).numpy()

    def changes(tables: list[HeadTable]) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        (before, after), none = tables, np.full(len(truth), np.nan)
        compared = Comparison(("", ""), before, after, names, none, none, none, (), 0, 0, {})
        replicates = after.sums.value() - before.sums.value()
        for name in names:
            yield *compared.interval(name), replicates[:, place[name], 1:]

    def of_changes(drawn: Drawn) -> list[tuple[np.ndarray, np.ndarray]]:
        return [(num[..., columns], den[..., columns]) for num, den in reversed(drawn.parts)]

    yield Question("changes, ", names, (other - truth)[:, columns], changes, of_changes)
    rules = [*RULES, *(rule_of(name) for name in place if name.endswith((".to_governor", ".to_dependent")))]
    pairs = [(rule.tested, f"{rule.statistic}.{way}") for rule in rules for way in rule.chances]
    pairs = [pair for pair in pairs if place.keys() >= set(pair)]

    def above(tables: list[HeadTable]) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        half = Half(tables[0], REPORT)
        for score, chance in pairs:
            over = half.above(score, chance)
            yield over.low, over.high, (half.replicates(score) - half.replicates(chance))[:, 1:]

    over_chance = np.stack([truth[:, place[score]] - truth[:, place[chance]] for score, chance in pairs], -1)

    def of_pairs(drawn: Drawn) -> list[tuple[np.ndarray, np.ndarray]]:
        (num, den), reported = drawn.parts[0], drawn.half == REPORT
        sides = ([place[pair[side]] for pair in pairs] for side in (0, 1))
        return [(num[reported][..., side], den[reported][..., side]) for side in sides]

    yield Question("above chance, ", [" over ".join(pair) for pair in pairs], over_chance, above, of_pairs)


def of_draws(population: Population, num_texts: int, draws: int, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    """How often the intervals of each question hold what all texts say."""
    asked = list(questions(population))
    results = [np.zeros((3, draws, *question.truth.shape), bool) for question in asked]
    widths: list[list[tuple[np.ndarray, ...]]] = [[] for _ in asked]
    for draw in range(draws):
        tables, drawn = population.tables(num_texts, rng)
        for question, (given, held, before), compared in zip(asked, results, widths, strict=True):
            low, high, replicates = (np.stack(part, 1) for part in zip(*question.ends(tables), strict=True))
            given[draw] = ~np.isnan(low)
            held[draw] = (low <= question.truth + 1e-12) & (question.truth - 1e-12 <= high)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # of figures of which nothing was counted
                first, last = np.nanpercentile(replicates, (2.5, 97.5), axis=-1)
            before[draw] = (first <= question.truth + 1e-12) & (question.truth - 1e-12 <= last)
            if draw % STUDENTISED_EVERY == 0 and given[draw].any():
                peer, shown = Studentised.of(question.texts(drawn), rng), given[draw]
                parts = ((high - low)[shown], held[draw][shown], peer.error[shown], peer.level(question.truth)[shown])
                compared.append((*parts, peer.widths()[:, shown].T))
    for question, (given, held, before), compared in zip(asked, results, widths, strict=True):
        rows = [
            (float(held[..., column][of].mean()), name)
            for column, name in enumerate(question.names)
            if (of := given[..., column]).mean() >= 0.02
        ]
        least, which = min(rows, default=(None, ""))
        yield {
            "what": f"{question.what}{population.name}, {num_texts} texts",
            "num_texts": num_texts,
            "draws": draws,
            "covered": float(held[given].mean()) if given.any() else None,
            "given": float(given.mean()),
            "least": least,
            "statistic": which,
            "below_0.92": sum(value < 0.92 for value, _ in rows),
            "statistics": len(rows),
            "percentile": float(before.mean()),
            **(beside_studentised(*map(np.concatenate, zip(*compared, strict=True))) if compared else {}),
        }


def beside_studentised(
    width: np.ndarray, held: np.ndarray, error: np.ndarray, level: np.ndarray, widths: np.ndarray
) -> dict[str, float]:
    """Our widths over a studentised bootstrap's, which has `widths` at `LEVELS`, and over the delta method's."""
    covered = np.array([(level >= outside).mean() for outside in LEVELS])  # rises with lower levels
    own = int(np.flatnonzero(LEVELS == 0.05)[0])
    with np.errstate(invalid="ignore", divide="ignore"):
        finite = np.isfinite(widths) & (widths > 0)
        at_levels = zip(widths.T, finite.T, strict=True)
        ratios = np.array([np.median((width / at)[use]) if use.any() else np.nan for at, use in at_levels])
        figures = {
            "width": float(np.interp(held.mean(), covered, ratios)),
            "width_95": float(ratios[own]),
            "width_delta": float(np.median(width / (2 * 1.96 * error))),
            "studentised": float(covered[own]),
            "bounded": float(finite[:, own].mean()),
        }
    return {name: value for name, value in figures.items() if np.isfinite(value)}


def of_means(name: str, values: np.ndarray, num_texts: int, draws: int, rng: np.random.Generator) -> dict[str, Any]:
    """How often `mean_interval` holds the mean over all texts, of every column."""
    truth, held, given, before, compared = values.mean(0), [], [], [], []
    for draw in range(draws):
        sample = values[rng.integers(0, len(values), num_texts)]
        low, high = mean_interval(sample)
        given.append(~np.isnan(low))
        held.append((low <= truth) & (truth <= high))
        weights = rng.multinomial(num_texts, np.full(num_texts, 1 / num_texts), 400) / num_texts
        first, last = np.percentile(weights @ sample, (2.5, 97.5), axis=0)
        before.append((first <= truth) & (truth <= last))
        if draw % STUDENTISED_EVERY == 0:
            peer = Studentised.of([(sample, np.ones_like(sample))], rng)
            compared.append((high - low, held[-1], peer.error, peer.level(truth), peer.widths().T))
    by_column = np.mean(held, 0)
    return {
        "what": f"{name}, {num_texts} texts",
        "num_texts": num_texts,
        "draws": draws,
        "covered": float(np.mean(held)),
        "given": float(np.mean(given)),
        "least": float(by_column.min()),
        "statistic": f"column {int(by_column.argmin())}",
        "below_0.92": int((by_column < 0.92).sum()),
        "statistics": len(by_column),
        "percentile": float(np.mean(before)),
        **beside_studentised(*map(np.concatenate, zip(*compared, strict=True))),
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
    torch.set_num_threads(1)
    print(f"{'':52}{'covered':>9}{'given':>7}{'width':>7}{'at 95':>7}{'delta':>7}  covered least", file=sys.stderr)

    def show(row: dict[str, Any]) -> None:
        covered = "-" if row["covered"] is None else f"{row['covered']:.3f}"
        least = "" if row["least"] is None else f"{row['least']:.2f} {row['statistic']}"
        few = f" ({row['below_0.92']} of {row['statistics']} under 0.92)" if row["below_0.92"] else ""
        widths = "".join(f"{row.get(name, float('nan')):>7.2f}" for name in ("width", "width_95", "width_delta"))
        figures = f"{covered:>9}{row['given']:>7.2f}{widths}  {least}{few}"
        print(f"{row['what']:52}{figures}", file=sys.stderr, flush=True)
        print(json.dumps(row), flush=True)

    def numbers(name: str, num_texts: int) -> np.random.Generator:
        """A generator of a row's own: it comes out the same whatever else is measured."""
        return np.random.default_rng([22, num_texts, *name.encode()])

    for population in chain(natural(folder), made(np.random.default_rng(22))):
        for num_texts in TEXTS:
            for row in of_draws(population, num_texts, draws, numbers(population.name, num_texts)):
                show(row)
    for name, values in effects(folder):
        for num_texts in TEXTS:
            show(of_means(name, values, num_texts, 5 * draws, numbers(name, num_texts)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
