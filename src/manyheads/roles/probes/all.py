"""Probes as part of roles: the three questions that no natural text answers, asked of whatever model is in hand.

Random tokens that repeat (every model of text), copying by weights alone (what writes one token after another),
retrieval of a needle (what does so and is long enough). What cannot be asked is said with the reason, and ends nothing:
a run over a corpus may have taken hours. No head is named after a probe: labels rest on natural text, and what a head
does with random tokens it need not do with words.

The numbers are those of `probe_repeats`, `copying_scores` and `retrieval_scores`, at their own defaults; here they only
come together. Cost: `COST`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from manyheads.base import Json, brief, plain
from manyheads.corpora import page_texts, reason_of
from manyheads.errors import ManyHeadsError, ModelError, TextError
from manyheads.models import LoadedModel
from manyheads.progress import ShowProgress, shows_progress
from manyheads.results import Plotted, Shown
from manyheads.roles.probes.copying import copying_scores
from manyheads.roles.probes.repeats import PLACES, HeadScore, HeadScores, added_around, probe_repeats
from manyheads.roles.probes.retrieval import SPARE_TOKENS, retrieval_scores
from manyheads.spec import CROSS

COST = "32 texts of random tokens, every layer's weights, 9 answers from long texts"
NO_LABEL = "a probe names no head: labels rest on natural text"
SHARE, EIGENVALUES = "share", "-1 to 1"
PLACE_NAMES = {"after": "random repeats", "same": "random repeats, offset 0", "before": "random repeats, offset -1"}
PROBES = {
    PLACE_NAMES["after"]: "Which head looks at what followed the earlier copy, where random tokens repeat?",
    PLACE_NAMES["same"]: "Which head looks at the earlier copy, where random tokens repeat?",
    PLACE_NAMES["before"]: "Which head looks at what preceded the earlier copy, where random tokens repeat?",
    "copying": "Which head raises the logit of the token that it looks at, by its weights?",
    "retrieval": "Which head looks at a fact far back in a long text while the model writes it down?",
}
"""Every probe, and its question in words."""

NEEDLE = " The keeper of the lighthouse hid seven green pelicans, two brass lanterns and an old map under the stairs."
QUESTION = "\nWhat did the keeper of the lighthouse hide, and where? The keeper of the lighthouse hid"
"""The answer begins in the question, so that a model that only goes on with texts can be asked as well."""
LENGTHS, NEEDLE_DEPTHS = (128, 512, 1_024), (0.1, 0.5, 0.9)


@dataclass(frozen=True, eq=False)
class Probe(Shown, Plotted):
    """One probe of every head. `says` is the variant, and what it rests on, in words.

    `scores` is None where the model could not be asked: then `says` is the reason. `spread` is chance's standard
    deviation where scores have no interval of their own (copying, which reads no text). `unit` is "share" or "-1 to 1".
    """

    name: str
    says: str
    scores: HeadScores | None = None
    spread: Float64[ndarray, "head"] | None = None
    unit: str = SHARE

    @property
    def asks(self) -> str:
        """The probe's question, in words."""
        return PROBES[self.name]

    def rows(self) -> list[Json]:
        """A flat row a head, with a claim's names for what both have; `also_z` where scores have no interval."""
        if self.scores is None:
            return []
        rows = self.scores.rows(role=self.name, asks=self.asks)
        if self.spread is None:
            return rows
        return [row | {"also_z": self.z(score)} for row, score in zip(rows, self.scores, strict=True)]

    def to_dict(self) -> Json:
        """Plain data for JSON: the question, on what the answer rests, and `rows` without what is not known."""
        heads = [
            {key: known for key, value in row.items() if (known := plain(value)) is not None} for row in self.rows()
        ]
        return {
            "name": self.name,
            "asks": self.asks,
            "says": self.says,
            "asked": self.scores is not None,
            "heads": heads,
        }

    def __repr__(self) -> str:
        if self.scores is None:
            return brief(f"Probe({self.name}: not asked, {self.says})")
        names = ", ".join(f"{score.head} {score.score:.2f}" for score in self.top(3))
        return brief(f"Probe({self.name}: {len(self.scores)} heads; furthest above chance: {names or 'none'})")

    def top(self, count: int | None = None) -> list[HeadScore]:
        """The heads furthest above chance (of copying: in standard deviations); none where it was not asked."""
        if self.scores is None:
            return []
        if self.spread is None:
            return self.scores.top(len(self.scores) if count is None else count)
        return [self.scores[self.scores.heads[place]] for place in np.argsort(-self.scores.score / self.spread)[:count]]

    def z(self, head: HeadScore) -> float | None:
        """How many standard deviations of chance a score lies from it, where it has that in place of an interval."""
        if self.scores is None or self.spread is None:
            return None
        return head.score / float(self.spread[self.scores.heads.index(head.head)])

    def beats_chance(self, head: HeadScore) -> bool:
        """Whether the interval lies above chance; for copying, whether the score lies two standard deviations above."""
        z = self.z(head)
        return head.low > head.chance if z is None else z > 2


class ProbeBatch(NamedTuple):
    """Probes that share forward passes, and about how many they take."""

    names: tuple[str, ...]
    ask: Callable[[LoadedModel], list[Probe]]
    passes: int


@shows_progress("probing heads")
def ask_probes(lm: LoadedModel, progress: ShowProgress = None) -> dict[str, Probe]:
    """Every probe of `PROBES` by name, for a loaded model; a probe that fails says why, and raises nothing.

    `progress` is called with forward passes done, and in all (about).
    """
    assert not isinstance(progress, bool), "the decorator made a function or None of it"
    total, done = sum(probe_kind.passes for probe_kind in KINDS), 0
    probes: dict[str, Probe] = {}
    for kind in KINDS:
        if progress is not None:
            progress(done, total)
        try:
            answers = kind.ask(lm)
        except Exception as error:
            # A model of somebody's own may raise anything; the probe says it, and the others go on.
            why = str(error) if isinstance(error, ManyHeadsError) else reason_of(error)
            answers = [Probe(name, why.removesuffix(".")) for name in kind.names]
        probes |= {probe.name: probe for probe in answers}
        done += kind.passes
    if progress is not None:
        progress(total, total)
    return probes


def repeat_probes(lm: LoadedModel) -> list[Probe]:
    """Random tokens that repeat: a probe for each place that a row may look at."""
    probe = probe_repeats(lm)
    says = f"{probe.variant}; {probe.notes['tokens']}"
    if "not causal" in probe.notes:
        says += "; " + probe.notes["not causal"].replace("'after'", f"'{PLACE_NAMES['after']}'")
    return [Probe(PLACE_NAMES[place], says, getattr(probe, place)) for place in PLACES]


def copying_probe(lm: LoadedModel) -> list[Probe]:
    """Copying by weights alone. Errors: ModelError."""
    _require_causal(lm)
    copying = copying_scores(lm)
    # No text, so no interval and no queries; the standard deviation of chance stands in `spread`.
    nothing, none = np.full(len(copying.heads), np.nan), np.zeros(len(copying.heads))
    scores = HeadScores(copying.heads, copying.score, nothing, nothing, {"shuffled": none}, none)
    says = (
        "W_E W_V W_O W_U by weights alone, no text: the sum of its eigenvalues over that of their absolute values "
        f"(Elhage et al. 2021); folded in: {copying.notes['folded']}; chance: {copying.notes['chance']}, mean 0"
    )
    return [Probe("copying", says, scores, copying.spread, EIGENVALUES)]


def retrieval_probe(lm: LoadedModel) -> list[Probe]:
    """A needle in texts of as many lengths as fit. Errors: ModelError; TextError where none fits."""
    _require_causal(lm)
    if not getattr(lm.model, "can_generate", lambda: False)():
        raise ModelError(f"{lm.name} ({type(lm.model).__name__}) cannot write: it has no language-model head.")
    texts = page_texts()

    def size(text: str) -> int:
        return len(lm.required_tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    most = size("\n".join(texts))
    if lm.max_positions is not None:
        # The needle twice: in the text, and in the answer.
        besides = len(added_around(lm.required_tokenizer)[0]) + 2 * size(NEEDLE) + SPARE_TOKENS + size(QUESTION)
        most = min(most, lm.max_positions - besides)
    if most < LENGTHS[0]:
        raise TextError(
            f"{lm.name} has {lm.max_positions} positions: {max(most, 0)} are left after the needle, the question and "
            f"the answer, and the shortest text has {LENGTHS[0]} tokens."
        )
    lengths = [length for length in LENGTHS if length <= most]
    scores = retrieval_scores(lm, texts, NEEDLE, QUESTION, lengths=lengths, depths=NEEDLE_DEPTHS)
    where = f"texts of {', '.join(f'{length:,}' for length in lengths)} tokens, at {len(NEEDLE_DEPTHS)} depths each"
    return [Probe("retrieval", f"a needle in {where}: {scores.words}", scores.scores)]


def _require_causal(lm: LoadedModel) -> None:
    if not any(site.causal and site.stack != CROSS for site in lm.spec.sites):
        raise ModelError(f"{lm.name} is not causal.")


KINDS = (
    ProbeBatch(tuple(PLACE_NAMES.values()), repeat_probes, 32),
    ProbeBatch(("copying",), copying_probe, 20),
    ProbeBatch(("retrieval",), retrieval_probe, len(LENGTHS) * len(NEEDLE_DEPTHS) * 30),
)
