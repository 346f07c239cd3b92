"""What every body is made of: names, texts, sizes, and the one form of a problem."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

MAX_TEXT = 400_000  # characters: some 100,000 tokens; a longer text is recorded by the library and opened as a file
MAX_STEPS = 64  # of a plan
MAX_NAME = 200

Number = float | None
"""A number, or null where there is none."""
HeadsText = Annotated[str, Field(max_length=4_000, examples=["L3H7, L5"])]
Text = Annotated[str, Field(max_length=MAX_TEXT)]
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
How = Literal["mean", "max"]
AblationKind = Literal["zero", "mean", "resample", "first"]


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


# ---------------------------------------------------------------------------------------------------------------------
# What is here to look at: models, files, and how much of each the server takes.


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


# ---------------------------------------------------------------------------------------------------------------------
# The steps of a plan, as the page tells them: `manyheads.plan` has what they do.


class AblateStep(Told):
    step: Literal["ablate"]
    heads: HeadsText
    kind: AblationKind = "zero"
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
