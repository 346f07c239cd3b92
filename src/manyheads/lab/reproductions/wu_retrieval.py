"""`wu-retrieval`: which heads of a pretrained model fetch a needle, and what it still finds without them.

A head's score is `roles.probes.retrieval_scores`, over texts of 1,000 to 8,000 tokens. Masked are the heads with a
score above 0.1, and as many others of their layers, on needles that chose no head.
Source: Wu et al. 2024, Retrieval head mechanistically explains long-context factuality, sections 2 to 4.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from manyheads.edits import applied
from manyheads.heads import Head
from manyheads.lab.reproductions import prose
from manyheads.lab.reproductions.prose import losses_without, others_like, page_in_order, windows_of
from manyheads.lab.reproductions.reproduction import Claim, Reproduction, Result, Row, Task, less
from manyheads.lab.training.charts import DOTS, Chart, Line, Panel, Points, PointsPanel
from manyheads.lab.training.runs import Progress
from manyheads.models import LoadedModel
from manyheads.plan import Ablate, Plan
from manyheads.roles.probes import RetrievalScores, retrieval_scores

RETRIEVAL = 0.1  # a head with a higher score is a retrieval head: the paper's threshold
NEEDLES = (
    ("The best thing to do in San Francisco is", " eat a sandwich and sit in Dolores Park on a sunny day."),
    ("The old clock in the harbour of Lisbon was repaired by",
     " a young baker with a golden hammer and a piece of string."),
    ("The favourite meal of the lighthouse keeper is",
     " cold potato soup with black pepper and a slice of rye bread."),
    ("The secret of the green door is", " a small brass key hidden under the third stone of the garden wall."),
    ("The winner of the snail race in Bergen was",
     " a grey snail named Oscar who belonged to a retired postman."),
    ("The first thing that the astronaut packed was",
     " a wooden flute, two pairs of yellow socks and a jar of honey."),
)  # fmt: skip
"""What stands before the needle in the text, and again at its end; and the needle, which goes on from there."""


@dataclass(frozen=True)
class Sizes:
    lengths: tuple[int, ...] = (1_000, 2_000, 4_000, 8_000)  # tokens, of the texts that choose heads
    masked_length: int = 1_000
    masked: int = 2  # needles on which heads are masked
    draws: int = 2  # of other heads
    window: int = 512  # tokens of prose


TRIAL = Sizes(lengths=(40,), masked_length=40, masked=1, draws=1, window=40)


class Question(NamedTuple):
    """A needle in a text of this many tokens, `depth` of them before it."""

    needle: int
    length: int
    depth: float


def run(task: Task) -> Result:
    seeds = prose.by_seed(task, measured, TRIAL if task.quick else Sizes())
    return Result(rows_of(seeds), chart(seeds), notes_of(seeds))


def measured(lm: LoadedModel, sizes: Sizes, seed: int, tell: Progress | None = None) -> dict[str, Any]:
    """One seed: scores by head, highest first; what is found and what prose costs with heads masked."""
    generator = np.random.Generator(np.random.PCG64(seed))
    order = generator.permutation(len(NEEDLES)).tolist()
    depths = iter(generator.uniform(0.1, 0.9, len(sizes.lengths) + sizes.masked).tolist())
    choosing = [
        Question(order[sizes.masked + number % (len(order) - sizes.masked)], length, next(depths))
        for number, length in enumerate(sizes.lengths)
    ]
    reporting = [Question(needle, sizes.masked_length, next(depths)) for needle in order[: sizes.masked]]
    total, done = len(choosing) + (2 + sizes.draws) * len(reporting), 0
    text, ids = page_in_order(seed), windows_of(lm, seed, 1, sizes.window)

    def answers(questions: Sequence[Question]) -> Iterator[RetrievalScores]:
        nonlocal done
        for question in questions:
            yield answer(lm, text, question)
            done += 1
            if tell is not None:
                tell(done, total)

    heads = list(lm.spec.heads)
    chosen_by = list(answers(choosing))
    mean = mean_score(chosen_by, len(heads))
    scores = {head: float(score) for head, score in zip(heads, mean, strict=True)}
    ranked = sorted(heads, key=lambda head: -scores[head])
    retrieval = [head for head in ranked if scores[head] > RETRIEVAL]
    intact = list(answers(reporting))
    held_out = mean_score(intact, len(heads))[[heads.index(head) for head in retrieval]]

    def without(removed: Sequence[Head]) -> dict[str, float]:
        with applied(lm, Plan([Ablate(list(removed), kind="zero")] if removed else [])):
            recall = recall_of(answers(reporting))
        return {"recall": recall, "loss": float(losses_without(lm, ids, removed).mean())}

    others = [without(others_like(retrieval, heads, 1_000 * seed + draw)) for draw in range(sizes.draws)]
    return {
        "scores": {str(head): scores[head] for head in ranked},
        "retrieval": [str(head) for head in retrieval],
        "held_out": float(held_out.mean()) if retrieval else 0.0,
        "trials": [trial_words(one) for one in (*chosen_by, *intact)],
        "intact": {"recall": recall_of(intact), "loss": float(losses_without(lm, ids).mean())},
        "masked": without(retrieval),
        "others": {name: float(np.mean([one[name] for one in others])) for name in others[0]},
    }


def answer(lm: LoadedModel, text: str, question: Question) -> RetrievalScores:
    """The model goes on with what stands before the needle, for as many tokens as the needle has."""
    before, needle = NEEDLES[question.needle]
    count = len(lm.required_tokenizer(needle, add_special_tokens=False)["input_ids"])
    return retrieval_scores(
        lm, text, needle, f"\n\n{before}", lead=f"\n{before}", lengths=[question.length], depths=[question.depth],
        generate=count, variant="paper",
    )  # fmt: skip


def mean_score(results: Sequence[RetrievalScores], count: int) -> Float64[ndarray, "head"]:
    """Each head's mean over the texts in which the needle was found; zeros where none was."""
    scores = [trial.score for result in results for trial in result.trials if trial.counted]
    return np.mean(scores, axis=0) if scores else np.zeros(count)


def recall_of(results: Iterator[RetrievalScores] | Sequence[RetrievalScores]) -> float:
    """The mean share of the needles' words that was written."""
    return float(np.mean([trial.recall for result in results for trial in result.trials]))


def trial_words(result: RetrievalScores) -> str:
    """A text, how much of its needle was found, and how many heads would be retrieval heads by it alone."""
    (trial,) = result.trials
    above = f"{(trial.score > RETRIEVAL).mean():.1%}" if trial.counted else "not counted"
    return f"{trial.length:,} at {trial.depth:.0%}: {trial.recall:.0%}, {above}"


# ------------------------------------------------------------------------------------------------------ what it shows


def rows_of(by_seed: Sequence[Mapping[str, Any]]) -> tuple[Row, ...]:
    def each(kind: str, name: str) -> tuple[float, ...]:
        return tuple(one[kind][name] for one in by_seed)

    def kept(kind: str) -> tuple[float, ...]:
        return tuple(one[kind]["recall"] / max(one["intact"]["recall"], 1e-9) for one in by_seed)

    share = tuple(len(one["retrieval"]) / len(one["scores"]) for one in by_seed)
    never = tuple(float(np.mean([score == 0 for score in one["scores"].values()])) for one in by_seed)
    return (
        Row(f"heads with a retrieval score above {RETRIEVAL:g}", "under 5 %", share, Claim("under 5 %", high=0.05),
            ".1%"),
        Row("heads with a score of 0", "", never, None, ".1%"),
        Row("the retrieval heads' mean score on other needles", "", tuple(one["held_out"] for one in by_seed),
            Claim("above 0.1", low=RETRIEVAL), ".2f"),
        Row("words of these needles written with all heads", "", each("intact", "recall"), None, ".1%"),
        Row("... of that, with the retrieval heads masked", "retrieval fails", kept("masked"),
            Claim("under half", high=0.5), ".1%"),
        Row("... of that, with other heads of the same layers masked", "not affected", kept("others"),
            Claim("over 90 %", low=0.9), ".1%"),
        Row("a token of prose with the retrieval heads masked, nats more", "still fluent",
            less(each("masked", "loss"), each("intact", "loss")), None, "+.3f"),
        Row("... with other heads masked", "", less(each("others", "loss"), each("intact", "loss")), None, "+.3f"),
    )  # fmt: skip


def notes_of(by_seed: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    heads = "; ".join(
        f"seed {seed}: " + (", ".join(f"{name} {one['scores'][name]:.2f}" for name in one["retrieval"]) or "none")
        for seed, one in enumerate(by_seed)
    )
    trials = "; ".join(f"seed {seed}: " + ", ".join(one["trials"]) for seed, one in enumerate(by_seed))
    return (
        f"Retrieval heads with their scores: {heads}.",
        "Texts by tokens and depth of the needle, with the share of its words that was written and the share of heads "
        f"above {RETRIEVAL:g} in this text alone; on the last ones of a seed heads are masked: {trials}.",
    )


def chart(by_seed: Sequence[Mapping[str, Any]]) -> Chart:
    """Scores by rank, and what is left with heads masked."""
    ranked = [tuple(one["scores"].values()) for one in by_seed]
    places = tuple(float(place) for place in range(1, len(ranked[0]) + 1))
    lines = (
        *(Line("", places, scores, bold=False) for scores in ranked),
        Line("mean over seeds", places, tuple(np.mean(ranked, axis=0).tolist())),
        Line(f"{RETRIEVAL:g}, a retrieval head", (places[0], places[-1]), (RETRIEVAL, RETRIEVAL), bold=False),
    )
    kinds = {"intact": "all heads", "masked": "retrieval heads\nmasked", "others": "others of their\nlayers masked"}

    def points(name: str, title: str, bottom: float | None, top: float | None) -> PointsPanel:
        groups = (
            Points(label, tuple(one[kind][name] for one in by_seed), kind == "masked") for kind, label in kinds.items()
        )
        return PointsPanel(title, tuple(groups), bottom, top)

    return Chart(
        "Few heads fetch the needle",
        f"{prose.MODEL}, {len(ranked[0])} heads; texts of up to 8,000 tokens, answers written word by word",
        (
            Panel("retrieval score, heads by rank", lines, bottom=0.0),
            points("recall", "share of the needle's words written", 0.0, 1.0),
            points("loss", "nats a token of prose", None, None),
        ),
        "heads, by rank",
        (DOTS,),
    )


REPRODUCTION = Reproduction(
    "wu-retrieval",
    "retrieval heads of a pretrained model, masked",
    "Wu et al. 2024, Retrieval Head Mechanistically Explains Long-Context Factuality (ICLR 2025).",
    "Under 5 % of heads are retrieval heads, in every family and size of model; with them masked a model finds no "
    "needle and is still fluent, with other heads masked it finds it (sections 3 and 4.1).",
    "While the model writes its answer, greedily, a head scores where the key that it looks at most lies in the needle "
    "and is the very token being written; the score is the share of the needle's tokens for which this happens, its "
    "mean over the texts in which more than half of the needle's words were written. A retrieval head has more than "
    f"{RETRIEVAL:g}. Texts of 1,000, 2,000, 4,000 and 8,000 tokens choose the heads (smollm2 has 8,192 positions), the "
    "needle at a drawn depth; masked, output 0, they are on two other needles in texts of 1,000 tokens, beside the "
    "same number of other heads of their layers, the mean of two draws.",
    (
        "smollm2 (135M, 270 heads), a base model that goes on with a sentence; the paper asks chat models questions, "
        "in 600 texts of 1,000 to 50,000 tokens for each model.",
        "Six texts a seed, and texts with one needle each: scores of single heads are rough.",
        "The haystack is a page of short texts one after another, not essays.",
        "Seeds are other orders of the texts, other needles and depths, not other models.",
    ),
    run,
)
