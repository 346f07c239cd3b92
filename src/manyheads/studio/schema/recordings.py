"""A recording, its heads and their roles: the data of the Atlas room and of the Head room."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from manyheads.studio.schema.base import Alternatives, AnswerBody, Name, Number, RequestBody, Steps, Text


class RecordingAsk(RequestBody):
    """A text to run through a model (`plan`: edits of its heads), or a file of the workspace to open.

    `values`: keep values also where the recording is large.
    """

    model: Name | None = None
    text: Text | None = None
    plan: Steps = []
    file: Name | None = None
    values: bool = False


class LayerInfo(AnswerBody):
    """One attention layer. Each run of `num_heads / num_kv_heads` heads shares its keys and values."""

    name: str
    stack: str
    layer: int
    module: str
    num_heads: int
    num_kv_heads: int
    qk_dim: int
    v_dim: int
    causal: bool
    crosses: bool
    num_queries: int
    num_keys: int
    reads: str = Field(description='whose tokens its queries are: a key of `tokens_of`, or "" for `tokens`')
    looks_at: str | None = Field(description="the same for its keys; null where they are not text")
    formula: str = Field(default="", description="how a row of weights is computed from q and k")
    because: str


class Token(AnswerBody):
    """A token. `piece` is the tokenizer's; `text` the characters of the input that it covers ("" for none).

    `label` is the token as people read it, without the vocabulary's marks: "the" and not "Ġthe", a line break as "↵".
    `unknown`: the tokenizer has no piece for that text, and the model reads the same token for every such text.
    `span`: its characters in the whole input text; null where that is not known.
    """

    piece: str
    text: str
    label: str
    special: bool
    sink: bool
    unknown: bool = False
    span: tuple[int, int] | None = None


class WordInfo(AnswerBody):
    """A word: its text, and its tokens from `begin` up to but not including `end`."""

    begin: int
    end: int
    text: str


class KeptScenes(AnswerBody):
    """What a saved page keeps of the scenes that need the model: of one head, at one token.

    `passes`: tokens whose forward pass is kept. `swap`: a word of the text and the words that were put in its place,
    `at` its first token; null where none is kept.
    """

    head: str
    query: int
    passes: list[int]
    swap: Alternatives | None
    at: int


class RecordingInfo(AnswerBody):
    """A recording and one of its texts (or windows of a long text): number `text` of `num_texts`.

    `tokens_of`: the tokens of other stacks, where they read another text (a decoder). `backend` and `because` say what
    computed the numbers and why; `notes` hold everything else about their origin.
    """

    id: str
    title: str
    model: str
    model_here: bool = Field(description="whether the model can be run, as experiments, roles and edits need")
    source: str = Field(description='"typed", "file NAME", or "typed, with heads edited"')
    written: str = Field(description="the whole input text; of several, the one that this part belongs to")
    part_words: str = Field(default="", description="which part this is, where there are several")
    text: int
    num_texts: int
    embed_dim: int | None
    layers: list[LayerInfo]
    num_tokens: int
    tokens: list[Token]
    tokens_of: dict[str, list[Token]]
    words: list[WordInfo]
    backend: str
    because: str
    notes: dict[str, str]
    max_level: int = Field(description="the level at which the largest map fits one tile")
    mask_token: str | None = Field(default=None, description="what the model was trained to read for a hidden token")
    min_level: int = Field(default=0, description="the finest level available: 0, except in a saved page")
    kept: KeptScenes | None = Field(default=None, description="of a saved page alone: scenes that need the model")


class StatisticInfo(AnswerBody):
    """The definition of a statistic, for a legend; `source` cites the formula's variant."""

    name: str
    title: str
    unit: str
    low: Number
    high: Number
    meaning: str
    source: str


class EvidenceInfo(AnswerBody):
    """The measurement behind a role; see `manyheads.roles` Evidence."""

    statistic: str
    score: Number
    chance: Number
    distance: Number
    low: Number
    high: Number
    num_queries: int
    given: Number
    words: str


class RoleInfo(AnswerBody):
    """A head's role, measured on the bundled texts. `family`: the group of roles with one colour and letter."""

    name: str
    family: str
    evidence: EvidenceInfo


class AtlasHead(AnswerBody):
    """One head. `values` are in the order of the atlas's statistics."""

    head: str
    stack: str
    layer: int
    index: int
    kv_group: int
    role: RoleInfo | None
    values: list[Number]


class TellingLink(AnswerBody):
    """The head to begin with on a text, and the two words that it links: the first token of each, and the weight."""

    head: str
    query: int
    key: int
    weight: float


class Atlas(AnswerBody):
    """Every head of a recording with its statistics on one text, and its role where it is known (`roles_because`).

    Once importance was requested, it is the last statistic: the loss of quality on this text without each head.
    `telling`: the link that tells most on this text; null where no two words see each other.
    """

    recording: str
    text: int
    statistics: list[StatisticInfo]
    heads: list[AtlasHead]
    roles_because: str
    caveat: str
    exact: str = Field(description='"exact", or which queries were sampled')
    telling: TellingLink | None = None


class RoleEntry(AnswerBody):
    """A head and its role."""

    head: str
    role: RoleInfo


class Roles(AnswerBody):
    """The roles of all heads, and how many texts and tokens they were measured on."""

    recording: str
    roles: list[RoleEntry]
    because: str
    num_texts: int
    num_tokens: int


class Link(AnswerBody):
    """One weight of a map: a query position and a key position."""

    query: int
    key: int
    weight: float


class CardValue(AnswerBody):
    """One statistic of one head on this text, its chance level, and its value on the bundled texts (`page`)."""

    statistic: StatisticInfo
    value: Number
    chance: Number
    page: Number


class HeadCard(AnswerBody):
    """One head. `links`: each query's best key apart from sinks, best first. `because`: what computed its numbers."""

    head: str
    recording: str
    text: int
    layer: LayerInfo
    kv_group: int
    shares_with: list[str]
    role: RoleInfo | None
    values: list[CardValue]
    links: list[Link]
    exact: str
    because: str
    caveat: str


class Pair(AnswerBody):
    """How one weight comes about: q and k of the pair, and every number between them and the weight.

    `scaled` is `scale * sum(q * k)`; `score` is that after the softcap and with `bias` added, where the layer has them.
    `weight` is `exp(score - lse)`, and 0 for a key that the query does not see. `about` says what q and k are.
    """

    head: str
    query: int
    key: int
    q: list[float]
    k: list[float]
    scale: float
    scaled: float
    softcap: Number
    bias: Number
    score: float
    lse: Number = Field(description="log of the summed exp(score) of the row; null for a row that sees nothing")
    sink: Number = Field(description="the learned sink's logit, which is part of `lse`; null where there is none")
    visible: bool
    num_visible: int
    weight: float
    about: str


class EffectVerdict(AnswerBody):
    """What an effect comes to, in words, from its rank among `controls` random sets: `above` of them change as much."""

    level: str
    words: str
    above: int
    controls: int


class SwapAsk(RequestBody):
    """One word of a recording's text changed. `at`, `query`: tokens of that word, and of the one that asks."""

    at: Annotated[int, Field(ge=0, lt=2**31)]
    query: Annotated[int, Field(ge=0, lt=2**31)]
    word: Annotated[str, Field(min_length=1, max_length=200)]
    heads: Annotated[list[Annotated[str, Field(max_length=80)]], Field(min_length=1, max_length=16)]


class SwapRow(AnswerBody):
    """One head's row of the asking word: the share of each word, before and after."""

    head: str
    before: list[float]
    after: list[float]


class Swap(AnswerBody):
    """What one word's looks become when another word is changed; see `manyheads.measurement` WordSwap.

    `query`, `place`: numbers of the word that asks and of the changed one among `words`; `begins`: each word's first
    token. `links`: the words that the sentence is about. `beside`: the head of the last row, where that was not asked
    for. `after_recording` can be opened like any other.
    """

    recording: str
    after_recording: str
    text: str
    words: list[str]
    begins: list[int]
    special: list[bool]
    query: int
    place: int
    new: str
    rows: list[SwapRow]
    links: list[int]
    beside: str | None
    linked: str = Field(description="what the first head does before the change, in a sentence")
    said: str
    figures: str


class Worth(AnswerBody):
    """The effect of ablating one head on this text; its fields mean the same as in `Experiment`."""

    head: str
    recording: str
    kind: str
    metric: str
    unit: str
    change: float
    control: list[float]
    words: str
    verdict: EffectVerdict
    notes: dict[str, str]
