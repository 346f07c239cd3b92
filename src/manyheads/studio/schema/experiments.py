"""Heads taken away: what is lost, beside random heads, and the checkpoint without them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from manyheads.studio.schema.base import MAX_NAME, MAX_STEPS, HeadsText, Name, Number, PlanStep, Said, Text, Told
from manyheads.studio.schema.recordings import Token


class ExperimentAsk(Told):
    """A plan on a text. `corpus`: what "mean" and "resample" are read from, the text itself unless given."""

    model: Name
    text: Text
    plan: Annotated[list[PlanStep], Field(min_length=1, max_length=MAX_STEPS)]
    name: Annotated[str, Field(max_length=MAX_NAME)] = ""
    metric: Annotated[str, Field(max_length=40)] = "auto"
    corpus: Text | None = None
    controls: Annotated[int, Field(ge=0, le=50)] = 10
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0


class Guess(Said):
    """A token that could come next (or stand here), and its probability before and after."""

    token: str
    before: float
    after: float


class Experiment(Said):
    """Before and after. A positive `change` is for the worse, in `unit`. `control` are random sets of as many heads.

    `per_token`: the change token by token, null where a token has none; `per_token_words` says what it is (the loss of
    a language model; of any other, how far a token's last state turned: 1 - cosine).
    `before_recording` and `after_recording` can be opened, and compared, as any other recording.
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


class PruningAsk(Told):
    """Heads to remove for good. `name`: of the folder to write, in the workspace's own folder."""

    model: Name
    heads: HeadsText
    name: Annotated[str, Field(min_length=1, max_length=80, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    empty_layers: bool = False


class Pruning(Said):
    folder: str
    model: str
    heads: list[str]
    parameters_before: int
    parameters_after: int
    stock: bool = Field(description="whether stock transformers loads it as it is")
    words: str
