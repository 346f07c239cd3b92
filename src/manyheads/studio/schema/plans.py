"""The steps of a plan, as the page tells them: `manyheads.plan` has what they do."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from manyheads.studio.schema.base import MAX_STEPS, AblationKind, HeadsText, Text, Told


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
