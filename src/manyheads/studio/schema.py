"""What the studio's server says and is told: every JSON body as a type, from which the page's own types are generated.

`web/openapi.json` is made from these, and `web/src/lib/api.d.ts` from that; a test holds them equal to this file.
Numbers that are not there (NaN, infinity) are null. Positions, heads and layers count from 0.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

MAX_TEXT = 400_000  # characters: some 100,000 tokens; a longer text is recorded by the library and opened as a file
MAX_STEPS = 64  # of a plan
MAX_NAME = 200

Number = float | None
"""A number, or null where there is none."""
HeadName = Annotated[str, Field(max_length=80, examples=["L3H7"])]
HeadsText = Annotated[str, Field(max_length=4_000, examples=["L3H7, L5"])]
Text = Annotated[str, Field(max_length=MAX_TEXT)]
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
How = Literal["mean", "max"]


class Said(BaseModel):
    """What the server says."""

    model_config = ConfigDict(frozen=True)


class Told(BaseModel):
    """What the server is told: nothing that it does not know."""

    model_config = ConfigDict(extra="forbid")


class Problem(Said):
    """Every answer that is no 2xx. `words` are for people: what was asked, what came, what to do."""

    kind: str
    words: str


# ---------------------------------------------------------------------------------------------------- the workspace


class ModelEntry(Said):
    """A model that can be chosen: bundled, or a folder of the workspace. `unavailable`: why it cannot be, else null."""

    name: str
    title: str
    bundled: bool
    loaded: bool
    unavailable: str | None


class FileEntry(Said):
    """A recording among the workspace's files; `id` is its recording's."""

    name: str
    id: str
    num_bytes: int
    unreadable: str | None


class Limits(Said):
    max_text: int
    max_steps: int
    max_running: int


class Workspace(Said):
    """What is here to look at. `can_write`: whether there is a folder to write pruned checkpoints to (`folder`)."""

    version: str
    models: list[ModelEntry]
    files: list[FileEntry]
    default_model: str | None
    default_text: str
    opened: str | None = Field(description="the recording that the command line named, opened first")
    folder: str
    can_write: bool
    limits: Limits


# ------------------------------------------------------------------------------------------------------ a plan's steps


class AblateStep(Told):
    step: Literal["ablate"]
    heads: HeadsText
    kind: Literal["zero", "mean", "resample", "first"] = "zero"
    per_position: bool = False
    text: Text | None = None
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0


class ScaleStep(Told):
    step: Literal["scale"]
    heads: HeadsText
    factor: Annotated[float, Field(ge=-1e30, le=1e30)]


class AverageStep(Told):
    step: Literal["average"]
    heads: HeadsText


class CopyStep(Told):
    step: Literal["copy"]
    heads: HeadsText
    source: HeadsText


class SkipStep(Told):
    """Without the output projection. `layer` as in "L3" or "L*"."""

    step: Literal["skip_output_projection"]
    layer: Annotated[str, Field(max_length=80)]


PlanStep = Annotated[AblateStep | ScaleStep | AverageStep | CopyStep | SkipStep, Field(discriminator="step")]
Steps = Annotated[list[PlanStep], Field(max_length=MAX_STEPS)]


# --------------------------------------------------------------------------------------------------------- recordings


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


# -------------------------------------------------------------------------------------------------------- experiments


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


# --------------------------------------------------------------------------------------------------------------- size


class SizeAsk(Told):
    """A preset or a model of the workspace by name, or a description; then what of it is different."""

    preset: Name | None = None
    model: Name | None = None
    words: dict[str, int | bool | str] | None = None
    num_kv_heads: Annotated[int, Field(ge=1, le=100_000)] | None = None
    context: Annotated[int, Field(ge=1, le=100_000_000)] | None = None
    batch: Annotated[int, Field(ge=1, le=1_000_000)] = 8
    dtype: Annotated[str, Field(max_length=20)] = "fp16"
    cache_dtype: Annotated[str, Field(max_length=20)] | None = None


class SizePreset(Said):
    """`words` where the preset can be described in plain words, for the sliders."""

    name: str
    title: str
    source: str
    note: str
    words: dict[str, int | bool | str | None] | None


class SizeLayer(Said):
    """One layer's parameters by part, and in all of attention and of the feed-forward."""

    index: int
    kind: str
    attention: int
    feed_forward: int
    other: int
    parts: dict[str, int]


class CachePoint(Said):
    context: int
    num_bytes: float


class CacheLine(Said):
    """The cache of one variant (MHA, GQA, MQA) against context."""

    name: str
    num_kv_heads: int | None
    own: bool
    num_parameters: int | None
    points: list[CachePoint]
    num_bytes: float


class SizeReport(Said):
    """`document` is what `manyheads size --json` prints; the rest is ready to draw. Bytes are exact; GiB is 2^30."""

    name: str
    num_parameters: int
    weight_bytes: float
    cache_bytes: Number
    parts: dict[str, int]
    layers: list[SizeLayer]
    lines: list[CacheLine]
    notes: list[str]
    document: dict[str, Any]


# -------------------------------------------------------------------------------------------------------------- learn


class LessonEntry(Said):
    """A lesson of the list. `points`: what each of its questions gives, by the question's name."""

    slug: str
    title: str
    summary: str
    minutes: int
    num_checks: int
    points: dict[str, int]


class Parameter(Said):
    """Something of a cell that the reader may change.

    `fills`, of a choice: what other parameters are under each choice. One choice fills nothing, and is the reader's
    own: changing what another filled goes over to it.
    """

    name: str
    label: str
    kind: Literal["text", "number", "choice"]
    value: str | float
    low: Number
    high: Number
    step: Number
    choices: list[str]
    fills: dict[str, dict[str, str]] = {}


class Prose(Said):
    kind: Literal["prose"]
    html: str


class LiveCell(Said):
    """A live cell: `run` is a named experiment of ours, never code from the page."""

    kind: Literal["cell"]
    cell: str
    title: str
    parameters: list[Parameter]


class Check(Said):
    """A question, made from `inputs`, which go back with the answer. `cell`: of a prediction, the cell it is about."""

    kind: Literal["check"]
    check: str
    question: str
    answer: Literal["number", "choice", "text"]
    choices: list[str]
    points: int
    inputs: dict[str, str | float]
    cell: str | None


class Interview(Said):
    """A question with a model answer, and what an answer should say, for the reader to tick."""

    kind: Literal["interview"]
    question: str
    interview: str
    points: list[str]
    html: str


Part = Annotated[Prose | LiveCell | Check | Interview, Field(discriminator="kind")]


class Lesson(Said):
    """A lesson whole. `seed`: of the checks' inputs where they were drawn, else null: as its page has them."""

    slug: str
    title: str
    summary: str
    minutes: int
    parts: list[Part]
    sources: list[str]
    seed: int | None


Inputs = Annotated[dict[str, Annotated[str, Field(max_length=4_000)] | float], Field(max_length=20)]


class CellAsk(Told):
    parameters: Inputs = {}


class Shown(Said):
    """One value of a cell's answer. `values` are rows of a matrix, of which `shape` says the whole shape.

    `as_map`: rows are tokens that look, columns tokens that are looked at.
    """

    label: str
    words: str
    shape: list[int]
    values: list[list[Number]]
    row_labels: list[str]
    column_labels: list[str]
    as_map: bool = False


class HeadPlace(Said):
    """A head on a text, to be opened in the Head room."""

    model: str
    head: str
    text: str


class CellResult(Said):
    lesson: str
    cell: str
    words: str
    shown: list[Shown]
    links: list[HeadPlace] = []


class CheckAsk(Told):
    """An answer to a question with these inputs. `cell`: what is in the cell that a prediction is about."""

    answer: Annotated[str, Field(max_length=1_000)]
    inputs: Inputs = {}
    cell: Inputs = {}


class CheckResult(Said):
    """`answered`: whether it was an answer at all; what was none costs nothing."""

    right: bool
    points: int
    words: str
    answered: bool


# --------------------------------------------------------------------------------------------------------------- jobs


class Progress(Said):
    words: str
    done: int
    total: int | None


JobKind = Literal["recording", "roles", "importance", "worth", "experiment", "pruning", "cell"]


class Job(Said):
    """Work under way or done. `result` is there when `state` is "done"; `problem` when it is "failed".

    Ask again with `wait` (seconds) to be told as soon as it ends. Work that nobody asks after is stopped.
    """

    id: str
    kind: JobKind
    state: Literal["running", "done", "failed", "cancelled"]
    progress: Progress
    seconds: float
    problem: Problem | None
    result: RecordingInfo | Roles | Atlas | Worth | Experiment | Pruning | CellResult | None
