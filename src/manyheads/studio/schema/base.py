"""The parts of every request and answer: names, limits of texts, problems, the workspace, the steps of plans."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from manyheads.plan import AblationKind

MAX_TEXT = 400_000  # characters: some 100,000 tokens; a longer text is recorded by the library and opened as a file
MAX_STEPS = 64  # of a plan
MAX_NAME = 200

# JSON has no NaN and no infinity, and a page could not draw them: both become null where an answer is built.
Number = Annotated[
    float | None,
    BeforeValidator(lambda x: (float(x) if math.isfinite(x) else None) if isinstance(x, float) else x),
]
"""A number, or null where there is none (NaN and infinity among them)."""
HeadsText = Annotated[str, Field(max_length=4_000, examples=["L3H7, L5"])]
Text = Annotated[str, Field(max_length=MAX_TEXT)]
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
How = Literal["mean", "max"]


Body = TypeVar("Body", bound=BaseModel)


class AnswerBody(BaseModel):
    """Base of every JSON answer of the server."""

    model_config = ConfigDict(frozen=True)

    @classmethod
    def of(cls: type[Body], value: object, **fields: Any) -> Body:
        """An answer that takes from `value`, a value of the library, all fields of the same name but `fields`."""
        shared = {name for name in cls.model_fields if name not in fields and hasattr(value, name)}
        return cls(**{name: getattr(value, name) for name in shared}, **fields)


class RequestBody(BaseModel):
    """Base of every JSON request: an unknown field is an error, for a misspelt one would be ignored in silence."""

    model_config = ConfigDict(extra="forbid")


class Problem(AnswerBody):
    """The body of every answer that is not 2xx. `words`, for people: what was asked, what came, what to do."""

    kind: str
    words: str


# The workspace: models, files, and how much of each request the server takes.


class ExamplePair(AnswerBody):
    """Two texts that differ in one thing, the clean one's answer, and the corrupted one's."""

    clean: str
    corrupted: str
    right: str
    wrong: str


class Question(AnswerBody):
    """A text and two of its words: which heads link them? `words` offer it to a reader."""

    text: str
    query: str
    key: str
    words: str


class Alternatives(AnswerBody):
    """A word of a model's sample, where it stands last, and words to put in its place."""

    word: str
    words: list[str]


class ModelEntry(AnswerBody):
    """A model of the workspace, bundled or a folder. `unavailable`: why it cannot be loaded, null where it can.

    `device`: where it computes, and why. `sample`: a text of the kind that it reads, to begin with; `question`: offered
    at the first visit to that text; `swap`: a word of it to change; `pair`: two such texts for the room Circuit, null
    of a bundled model that predicts no tokens.
    """

    name: str
    title: str
    sample: str
    question: Question | None
    swap: Alternatives | None
    bundled: bool
    loaded: bool
    unavailable: str | None
    device: str
    pair: ExamplePair | None


class FileEntry(AnswerBody):
    """A file of the workspace that holds a recording; `id` is the id of that recording."""

    name: str
    id: str
    num_bytes: int
    unreadable: str | None


class Limits(AnswerBody):
    max_text: int
    max_steps: int
    max_running: int


class Workspace(AnswerBody):
    """What can be opened. `can_write`: whether there is a `folder` into which pruned checkpoints may be written.

    `num_histories`: how many watched trainings there are.
    """

    version: str
    models: list[ModelEntry]
    files: list[FileEntry]
    default_model: str | None
    default_text: str
    opened: str | None = Field(description="the recording that the command line named, opened first")
    folder: str
    can_write: bool
    num_histories: int = 0
    limits: Limits


# The steps of a plan as JSON. `manyheads.plan` says what each does.


class AblateStep(RequestBody):
    step: Literal["ablate"]
    heads: HeadsText
    kind: AblationKind = "zero"
    per_position: bool = False
    text: Text | None = None
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    sink: Annotated[int, Field(ge=0, le=10**9)] | None = None
    recent: Annotated[int, Field(ge=1, le=10**9)] | None = None


class ScaleStep(RequestBody):
    step: Literal["scale"]
    heads: HeadsText
    factor: Annotated[float, Field(ge=-1e30, le=1e30)]


class AverageStep(RequestBody):
    step: Literal["average"]
    heads: HeadsText


class CopyStep(RequestBody):
    step: Literal["copy"]
    heads: HeadsText
    source: HeadsText
    share: Annotated[float, Field(ge=0, le=1)] = 1.0


class SkipStep(RequestBody):
    """Leaves out a layer's output projection. `layer` as in "L3" or "L*"."""

    step: Literal["skip_output_projection"]
    layer: Annotated[str, Field(max_length=80)]


class SkipPositionsStep(RequestBody):
    """Takes the model's positions away."""

    step: Literal["skip_positions"]


PlanStep = Annotated[
    AblateStep | ScaleStep | AverageStep | CopyStep | SkipStep | SkipPositionsStep, Field(discriminator="step")
]
Steps = Annotated[list[PlanStep], Field(max_length=MAX_STEPS)]
