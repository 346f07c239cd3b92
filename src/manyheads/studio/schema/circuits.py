"""The room Circuit: two texts that differ in one thing, what each head does to the answer, and circuits of heads."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from manyheads.studio.schema.base import AnswerBody, HeadsText, Name, Number, RequestBody
from manyheads.studio.schema.recordings import Token

MAX_PAIR = 8_000  # characters of either text: every head of a model is run on it
MAX_ANSWER = 200

What = Literal["out", "q", "k", "v", "weights"]
Channel = Literal["q", "k", "v"]
Direction = Literal["denoise", "noise"]
PairText = Annotated[str, Field(min_length=1, max_length=MAX_PAIR)]
AnswerText = Annotated[str, Field(max_length=MAX_ANSWER)]
HeadName = Annotated[str, Field(min_length=1, max_length=80)]


class PairAsk(RequestBody):
    """Two texts and their answers.

    With both answers the logit of `right` less that of `wrong` is compared; with the right one alone its logit; with
    none all of the next token's distribution.
    """

    model: Name
    clean: PairText
    corrupted: PairText
    right: AnswerText = ""
    wrong: AnswerText = ""


class PatchAsk(PairAsk):
    what: What = "out"
    direction: Direction = "denoise"
    controls: Annotated[int, Field(ge=0, le=50)] = 10
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0


class OneHeadAsk(PairAsk):
    """The same about one head. `direction` is that of the paths into it."""

    head: HeadName
    direction: Direction = "denoise"


class AloneAsk(PairAsk):
    heads: Annotated[HeadsText, Field(min_length=1)]


class SmallestAsk(PairAsk):
    keep: Annotated[float, Field(gt=0, le=1)] = 0.9


class NextToken(AnswerBody):
    """A token that may come next, as an answer is written (its leading space and all), and its probability."""

    text: str
    probability: float


class PairSide(AnswerBody):
    """One text of a pair: its tokens, and what the model expects next, the likeliest first."""

    tokens: list[Token]
    next: list[NextToken]


class AnswerToken(AnswerBody):
    """An answer: the token that stands for it, and that token's probability on the clean and on the corrupted text."""

    role: Literal["right", "wrong"]
    text: str
    clean: float
    corrupted: float


class PairReading(AnswerBody):
    """A pair as the model reads it. `trouble`: why it cannot be patched, and what `about` that is; null where it can.

    `differs`: the positions at which the two texts have unlike tokens; of texts of unlike length the first one alone.
    `heads`: all of the model, layer by layer, before any of them is patched.
    """

    model: str
    predicts: bool = Field(description="whether the model predicts tokens at all")
    heads: list[str]
    clean: PairSide
    corrupted: PairSide
    differs: list[int]
    aligned: bool
    answers: list[AnswerToken]
    compared: str = Field(description="what of the two texts is compared, in words")
    about: Literal["model", "texts", "answers"] | None
    trouble: str | None


class HeadEffects(AnswerBody):
    """What every head does to the answer, as a share of the difference between the two texts' answers.

    `control`: the same of random heads with an unrelated text's numbers. `beyond`: the heads whose effect is larger
    than that of every control. `kv_groups`: each head's key/value head in its layer, the same for heads that share one.
    `verdict`: what it comes to; `then`: what that means, and how sure it is.
    """

    model: str
    what: What
    direction: Direction
    metric: str
    unit: str
    clean: float
    corrupted: float
    heads: list[str]
    kv_groups: list[int]
    effects: list[Number]
    control: list[float]
    beyond: list[str]
    verdict: str
    then: str
    notes: dict[str, str]


class KeyPart(AnswerBody):
    """What a head took from one token: its weight there, and what that added to the answer, in logits."""

    weight: float
    value: float


class HeadWriting(AnswerBody):
    """What one head wrote to the answer on each text, straight along the residual stream, and from which tokens.

    `parts` are null where something acts between the head and its output projection; `words` then say so. `rank`: 1 for
    the head that adds most to the answer on the clean text, of `num_heads`.
    """

    head: str
    clean: float
    corrupted: float
    clean_parts: list[KeyPart] | None
    corrupted_parts: list[KeyPart] | None
    clean_total: float
    corrupted_total: float
    rank: int
    num_heads: int
    words: str
    notes: dict[str, str]


class HeadPath(AnswerBody):
    """What goes from an earlier head to one channel of this one: a share of the answer."""

    sender: str
    channel: Channel
    effect: Number


class HeadPaths(AnswerBody):
    """Whom a head listens to: every path from an earlier head into its queries, keys and values."""

    head: str
    direction: Direction
    paths: list[HeadPath]
    words: str
    notes: dict[str, str]


class CircuitRun(AnswerBody):
    """A set of heads run alone, all others with their numbers of the corrupted text, and the reverse.

    `kept` and `left`: the shares of the answer that these heads keep, and that are left when these alone are
    corrupted; `random_kept` and `random_left`: the same of random sets of the same number of heads. `costs`: what is
    lost when one head is taken out of the set. `keep`: the share that was searched for, null for a set of the reader's
    own.
    """

    heads: list[str]
    costs: list[float]
    kept: float
    left: float
    random_kept: list[float]
    random_left: list[float]
    keep: float | None
    num_heads: int
    words: str
    then: str
    notes: dict[str, str]
