"""manyheads: what every attention head of a transformer does, what it is worth, and what it costs.

This is the front door. Names load their module when they are first used (PEP 562), so importing the package takes
milliseconds and brings neither torch nor NumPy. A new public name takes a row in `_MODULE_OF`, a line under
TYPE_CHECKING (for editors and pyright) and one in `__all__`; a test holds the three together.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from manyheads import compat, design, reference
    from manyheads.corpora.open import open_corpus
    from manyheads.errors import (
        FileAccessError,
        GuardError,
        HeadError,
        ManyHeadsError,
        ModelError,
        PlanError,
        RecordingError,
        ShapeError,
        StatisticError,
        TextError,
        WindowError,
    )
    from manyheads.heads import Head
    from manyheads.interventions.apply.applied import applied
    from manyheads.interventions.convert.convert import convert_to_gqa
    from manyheads.interventions.effects.effect import effect
    from manyheads.interventions.effects.importance import importance
    from manyheads.interventions.prune.prune import prune_heads
    from manyheads.models.dimensions import size
    from manyheads.models.loading.load import load
    from manyheads.models.recorder import record, record_call
    from manyheads.models.taps.tap import tap
    from manyheads.nn.attention import attend
    from manyheads.nn.caches import KVCache
    from manyheads.nn.feed_forward import FeedForward, SwiGLU
    from manyheads.nn.layer import MultiHeadAttention
    from manyheads.plan import Ablate, Average, Copy, Plan, Scale, SkipOutputProjection
    from manyheads.recording.file.write import open_recording
    from manyheads.roles.compare.families import head_families
    from manyheads.roles.find import find_roles
    from manyheads.spec import ModelSpec
    from manyheads.statistics.measurement import measure, measure_call
    from manyheads.studio.outside.notebook import show

__version__ = "0.1.0"

__all__ = [
    # a model, and what its heads did
    "load",
    "record",
    "record_call",
    "open_recording",
    "tap",
    # what the heads do
    "measure",
    "measure_call",
    "find_roles",
    "head_families",
    "open_corpus",
    "show",
    # heads removed for good
    "prune_heads",
    # fewer keys and values
    "convert_to_gqa",
    # what they are worth
    "Plan",
    "Ablate",
    "Scale",
    "Average",
    "Copy",
    "SkipOutputProjection",
    "applied",
    "effect",
    "importance",
    # heads of which the answer is known
    "design",
    # other tools' own numbers
    "compat",
    # what it costs
    "size",
    # the operation itself
    "attend",
    "MultiHeadAttention",
    "KVCache",
    "FeedForward",
    "SwiGLU",
    "reference",
    # what things are called
    "Head",
    "ModelSpec",
    # what can go wrong
    "ManyHeadsError",
    "FileAccessError",
    "GuardError",
    "HeadError",
    "ModelError",
    "PlanError",
    "RecordingError",
    "ShapeError",
    "StatisticError",
    "TextError",
    "WindowError",
    "__version__",
]

_ERRORS = [name for name in __all__ if name.endswith("Error")]

_STEPS = ("Ablate", "Scale", "Average", "Copy", "SkipOutputProjection")

_MODULE_OF = {
    "load": "manyheads.models.loading.load",
    "record": "manyheads.models.recorder",
    "record_call": "manyheads.models.recorder",
    "open_recording": "manyheads.recording.file.write",
    "size": "manyheads.models.dimensions",
    "tap": "manyheads.models.taps.tap",
    "measure": "manyheads.statistics.measurement",
    "measure_call": "manyheads.statistics.measurement",
    "find_roles": "manyheads.roles.find",
    "head_families": "manyheads.roles.compare.families",
    "open_corpus": "manyheads.corpora.open",
    "show": "manyheads.studio.outside.notebook",
    "prune_heads": "manyheads.interventions.prune.prune",
    "convert_to_gqa": "manyheads.interventions.convert.convert",
    "attend": "manyheads.nn.attention",
    "MultiHeadAttention": "manyheads.nn.layer",
    "KVCache": "manyheads.nn.caches",
    "FeedForward": "manyheads.nn.feed_forward",
    "SwiGLU": "manyheads.nn.feed_forward",
    "applied": "manyheads.interventions.apply.applied",
    "effect": "manyheads.interventions.effects.effect",
    "importance": "manyheads.interventions.effects.importance",
    **dict.fromkeys(("Plan", *_STEPS), "manyheads.plan"),
    "Head": "manyheads.heads",
    "ModelSpec": "manyheads.spec",
    **dict.fromkeys(_ERRORS, "manyheads.errors"),
}
_MODULES = {"reference", "design", "compat"}  # public names that are modules themselves


if not TYPE_CHECKING:  # else every misspelt name would pass as one of these

    def __getattr__(name: str) -> object:
        if name in _MODULES:
            return import_module(f"manyheads.{name}")
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'manyheads' has no attribute {name!r}; it has {', '.join(__all__)}.")
        value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
