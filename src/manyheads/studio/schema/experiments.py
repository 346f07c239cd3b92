"""Experiments on heads (what a plan changes, beside random heads), and checkpoints without heads."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from manyheads.studio.schema.base import (
    MAX_NAME,
    MAX_STEPS,
    AnswerBody,
    HeadsText,
    Name,
    Number,
    PlanStep,
    RequestBody,
    Text,
)
from manyheads.studio.schema.recordings import Token


class ExperimentAsk(RequestBody):
    """A plan to carry out on a text. `corpus`: the source of "mean" and "resample" values, by default the text."""

    model: Name
    text: Text
    plan: Annotated[list[PlanStep], Field(min_length=1, max_length=MAX_STEPS)]
    name: Annotated[str, Field(max_length=MAX_NAME)] = ""
    metric: Annotated[str, Field(max_length=40)] = "auto"
    corpus: Text | None = None
    controls: Annotated[int, Field(ge=0, le=50)] = 10
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0


class Guess(AnswerBody):
    """A token that could come next, and its probability before and after the plan."""

    token: str
    before: float
    after: float


class Experiment(AnswerBody):
    """What a plan changed. A positive `change` is for the worse, in `unit`; `control`: that of random sets of heads.

    `per_token`: the change of each token, null where a token has none; `per_token_words` names the measure (the loss of
    a language model; for other models the turn of a token's last state: 1 - cosine).
    `before_recording` and `after_recording` can be opened and compared like any other recording.
    """

    id: str
    name: str
    model: str
    text: str
    plan: list[PlanStep]
    plan_words: str
    metric: str
    unit: str
    change: float
    low: Number
    high: Number
    before: Number
    after: Number
    control: list[float]
    share_of_controls_above: Number
    tokens: list[Token]
    per_token: list[Number]
    per_token_words: str
    guesses: list[Guess]
    before_recording: str
    after_recording: str
    words: str
    notes: dict[str, str]


class PruningAsk(RequestBody):
    """Heads to remove for good. `name`: of the folder to write inside the workspace's folder."""

    model: Name
    heads: HeadsText
    name: Annotated[str, Field(min_length=1, max_length=80, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    empty_layers: bool = False


class Pruning(AnswerBody):
    """A checkpoint that was written, and how many parameters it saved."""

    folder: str
    model: str
    heads: list[str]
    parameters_before: int
    parameters_after: int
    stock: bool = Field(description="whether stock transformers loads the checkpoint as it is")
    words: str
