"""A request's steps as the library's plan, and the texts that the plan takes its values from, the same everywhere.

An experiment and the recording of its "after" must put the same in a head's place, so both ask here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from manyheads.corpora import page_texts
from manyheads.plan import Ablate, Plan
from manyheads.studio.schema.base import PlanStep

__all__ = ["corpus_of", "plan_of"]


OTHER_TEXTS = 32  # of our own page, where "resample" has no corpus: as many as resampling draws from


def plan_of(steps: Sequence[PlanStep]) -> Plan:
    """The library's plan of the steps of a request. Errors: PlanError, HeadError."""
    return Plan.from_dict({"steps": [step.model_dump() for step in steps]})


def corpus_of(plan: Plan, text: str, given: str | None = None) -> tuple[list[str] | None, str]:
    """The texts that "mean" and "resample" take their values from, and why these; None for a plan that needs none.

    They are the paragraphs of `given`, else the text that is read. To resample from that would change nothing, so that
    "resample" then takes our own page.
    """
    if not plan.needs_corpus:
        return None, ""
    if given is not None and given.strip():
        parts = [" ".join(part.split()) for part in re.split(r"\n\s*\n", given) if part.strip()]
        return parts, f"{len(parts)} paragraph{'s' * (len(parts) != 1)}, as given"
    if any(isinstance(step, Ablate) and step.kind == "resample" and step.needs_corpus for step in plan.steps):
        page = page_texts()
        spread = page[:: max(1, len(page) // OTHER_TEXTS)][:OTHER_TEXTS]
        return spread, f"{len(spread)} texts of our own page: the text itself would change nothing"
    return [text], "the text itself, for want of another"
