"""The presets by name, in the order in which they are listed."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType

from manyheads.errors import PlanError
from manyheads.training.presets import code, collapse, gqa, heads, induction, rul
from manyheads.training.presets.preset import Preset

PRESETS: Mapping[str, Preset] = MappingProxyType(
    {each.name: each for each in (induction.PRESET, heads.PRESET, collapse.PRESET, gqa.PRESET, code.PRESET, rul.PRESET)}
)


def preset_of(name: str) -> Preset:
    """Errors: PlanError for a name that there is not, with those that there are."""
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, 1)
        meant = f" Did you mean {near[0]}?" if near else ""
        raise PlanError(f"there is no preset {name!r}: train one of {', '.join(PRESETS)}.{meant}")
    return PRESETS[name]
