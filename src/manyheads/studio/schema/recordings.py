"""A recording, its heads and their labels: what the atlas and the room of one head are drawn from."""

from __future__ import annotations

from pydantic import Field

from manyheads.studio.schema.base import Name, Number, Said, Steps, Text, Told


class RecordingAsk(Told):
    """A text through a model (`plan`: with its heads so edited), or one of the workspace's files."""

    model: Name | None = None
    text: Text | None = None
    plan: Steps = []
    file: Name | None = None


class LayerInfo(Said):
    """One attention layer. `heads` of it share keys and values in runs of `num_heads / num_kv_heads`."""

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
    looks_at: str | None = Field(description="the same of its keys; null where they are no text")
    formula: str = Field(default="", description="how a row of weights is made of q and k")
    because: str


class Token(Said):
    """`piece` as the tokenizer has it; `text` as it stands in what was written ("" where nothing does).

    `unknown`: the tokenizer has no piece for that text, and the model reads the same token for all such.
    """

    piece: str
    text: str
    special: bool
    sink: bool
    unknown: bool = False


class WordInfo(Said):
    """A word: its tokens `begin` to `end` (not included), and its text."""

    begin: int
    end: int
    text: str


class RecordingInfo(Said):
    """A recording, and one of its texts (or windows): `text` of `num_texts`.

    `tokens_of`: those of other stacks, where they read another text (a decoder). `backend` and `because` say what gave
    the numbers and why; `notes` everything else that it rests on.
    """

    id: str
    title: str
    model: str
    model_here: bool = Field(description="whether the model can be run here: for experiments, roles and changes")
    source: str = Field(description='"typed", "file NAME", or "typed, with heads edited"')
    written: str = Field(description="the text as it was written; of several, the one that this part is of")
    part_words: str = Field(default="", description="which part this is of what, where there are several")
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
    min_level: int = Field(default=0, description="the finest level there is: 0, but in a page that was saved")


class StatisticInfo(Said):
    """A statistic's definition, for a legend: a formula's variant and source are one click away."""

    name: str
    title: str
    unit: str
    low: Number
    high: Number
    meaning: str
    source: str


class EvidenceInfo(Said):
    statistic: str
    score: Number
    chance: Number
    low: Number
    high: Number
    num_queries: int
    given: Number
    words: str


class RoleInfo(Said):
    """What a head does, by the bundled page. `family` is one of the ten or fewer that have a colour and a letter."""

    name: str
    family: str
    evidence: EvidenceInfo


class AtlasHead(Said):
    """`values` in the order of the atlas's statistics."""

    head: str
    stack: str
    layer: int
    index: int
    kv_group: int
    role: RoleInfo | None
    values: list[Number]


class Atlas(Said):
    """Every head of a recording with its numbers on this text; its role where that is known (`roles_because`).

    The last statistic is "importance" once somebody has asked for it: what is lost on this text without each head.
    """

    recording: str
    text: int
    statistics: list[StatisticInfo]
    heads: list[AtlasHead]
    roles_because: str
    caveat: str
    exact: str = Field(description='"exact", or over which sampled queries')


class RoleEntry(Said):
    head: str
    role: RoleInfo


class Roles(Said):
    recording: str
    roles: list[RoleEntry]
    because: str
    num_texts: int
    num_tokens: int


class Link(Said):
    query: int
    key: int
    weight: float


class CardValue(Said):
    """One statistic of one head on this text, beside what chance gives; `page` is its value on the bundled page."""

    statistic: StatisticInfo
    value: Number
    chance: Number
    page: Number


class HeadCard(Said):
    """One head. `links`: each query's best key but the sinks, best first. `because` says what gave its numbers."""

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


class Worth(Said):
    """What is lost without one head, on this text: see `Experiment` for the fields' meaning."""

    head: str
    recording: str
    kind: str
    metric: str
    unit: str
    change: float
    control: list[float]
    words: str
    notes: dict[str, str]
