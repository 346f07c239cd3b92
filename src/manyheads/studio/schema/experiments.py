"""Experiments on heads (what a plan changes, beside random heads), and checkpoints without heads."""

from __future__ import annotations

from typing import Annotated, Literal

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
from manyheads.studio.schema.recordings import EffectVerdict, Token

SceneName = Literal["same", "unmixed", "one", "half", "positions"]
"""The Experiment room's scenes: one map for all heads, no Wᴼ, one head a layer, half of them, no positions."""


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


class Neighbour(AnswerBody):
    """An example sentence, and the cosine of its embedding with the text's, before and under the plan."""

    sentence: str
    before: float
    after: float


class DiversityChange(AnswerBody):
    """How different the heads of a layer look, 0 (all the same) to 1, mean over layers; null where `words` say why."""

    before: Number
    after: Number
    words: str


class Experiment(AnswerBody):
    """What a plan changed. A positive `change` is for the worse, in `unit`; `control`: that of random sets of heads.

    `verdict`: what that comes to, in words. `diversity`: of the heads' maps. `neighbours`: of a model that embeds.
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
    control_guesses: list[float] = Field(
        description="the probability of the likeliest next token under each random set; empty without guesses"
    )
    neighbours: list[Neighbour]
    diversity: DiversityChange
    verdict: EffectVerdict
    headline: str = Field(description="what changed, in plain words")
    beside: str = Field(description="what random heads do, or why there are none; empty where nothing changes")
    before_recording: str
    after_recording: str
    words: str
    notes: dict[str, str]


class BlendAsk(RequestBody):
    """A text to read with heads that use more and more of their layer's head 0. `layer`: whose maps, as "L2".

    `steps`: at so many shares, from 0 to 1; with fewer the answer comes sooner.
    """

    model: Name
    text: Text
    layer: Annotated[str, Field(max_length=80)] | None = None
    steps: Annotated[int, Field(ge=2, le=11)] = 11


class BlendStep(AnswerBody):
    """One tenth of the way: `share` of head 0's weights in every head.

    `values` is of each of `Blend.items`; `kept` is the cosine of the text's embedding with that as it was, of a model
    that embeds, `loss` the mean loss (nats a token) of a language model, `diversity` how different the heads of a layer
    look (0: all the same; mean over layers); null where there is none.
    """

    share: float
    values: list[float]
    kept: Number
    loss: Number
    diversity: Number
    headline: str
    figures: str


class Blend(AnswerBody):
    """All heads on their way to one map, in two to eleven steps.

    `maps`: base64 of uint16, little-endian, [11, heads, side, side] of `layer`: a share is u / 65,534, 65,535 is a cell
    that is not seen; `exact` unless the text is longer than `side`, and a cell is then the mean of a block.
    `items`: the example sentences, or the tokens that are among the likeliest at some step, by `kind`.
    """

    model: str
    text: str
    layer: str
    heads: list[str]
    layers: list[str] = Field(description="the layers whose maps can be asked for")
    side: int
    exact: bool
    maps: str
    tokens: list[Token]
    kind: Literal["neighbours", "guesses", ""]
    items: list[str]
    steps: list[BlendStep]


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
