"""The steps of a request as a plan of the library, and the texts from which a plan takes its values.

An experiment and the recording of its "after" must put the same values in a head's place, so both use these functions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from manyheads.corpora import page_texts
from manyheads.plan import Ablate, Plan
from manyheads.studio.schema.base import PlanStep

__all__ = ["corpus_of", "plan_of"]


RESAMPLED_TEXTS = 32  # of our own page, where "resample" has no corpus: as many as resampling draws from


def plan_of(steps: Sequence[PlanStep]) -> Plan:
    """The library's plan of the steps of a request. Errors: PlanError, HeadError."""
    return Plan.from_dict({"steps": [step.model_dump() for step in steps]})


def corpus_of(plan: Plan, text: str, corpus: str | None = None) -> tuple[list[str] | None, str]:
    """The texts from which "mean" and "resample" take their values, and why these; None for a plan that needs none.

    They are the paragraphs of `corpus`, else the text itself; but "resample" then uses our own page, for values of the
    same text would change nothing.
    """
    if not plan.needs_corpus:
        return None, ""
    if corpus is not None and corpus.strip():
        paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n", corpus) if part.strip()]
        return paragraphs, f"{len(paragraphs)} paragraph{'s' * (len(paragraphs) != 1)}, as given"
    if any(isinstance(step, Ablate) and step.kind == "resample" and step.needs_corpus for step in plan.steps):
        page = page_texts()
        spread = page[:: max(1, len(page) // RESAMPLED_TEXTS)][:RESAMPLED_TEXTS]
        return spread, f"{len(spread)} texts of our own page: the text itself would change nothing"
    return [text], "the text itself, for want of another"
