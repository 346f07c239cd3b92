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
