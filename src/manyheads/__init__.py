"""manyheads: what every attention head of a transformer does, what it is worth, and what it costs.

This is the front door. Names load their module when they are first used (PEP 562), so importing the package takes
milliseconds and brings neither torch nor NumPy. A new public name takes a line in `__init__.pyi`, which says where it
comes from, and one in `__all__`, in reading order; a test holds the two together.
"""

# pyright: reportUnsupportedDunderAll=false
# The stub beside this file has the types.
import lazy_loader

__version__ = "0.1.0"

__all__ = [
    # a model, and what its heads did
    "load",
    "record",
    "record_call",
    "open_recording",
    "tap",
    "declare",
    "Inputs",
    # what the heads do
    "measure",
    "statistics_of",
    "HeadSums",
    "find_roles",
    "head_families",
    "compare",
    "open_corpus",
    "show",
    # heads while a model trains
    "watch",
    "HeadWatch",
    "QKClip",
    # which heads need a long context
    "split_heads",
    "HeadSplit",
    "read_heads",
    "streaming",
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
    "SkipPositions",
    "Edit",
    "applied",
    "effect",
    "importance",
    # which heads carry an answer
    "patch",
    "find_circuit",
    # what a head adds, and what reads it
    "logit_attribution",
    "writes",
    "composition",
    # why a head looks there, and what is known of it
    "why",
    # what it costs
    "size",
    # the operation itself
    "attend",
    "MultiHeadAttention",
    "KVCache",
    "FeedForward",
    "SwiGLU",
    # what things are called
    "Head",
    # what can go wrong
    "ManyHeadsError",
    "errors",
    "__version__",
]

_load, _, _ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    if name in __all__:
        return _load(name)
    import re  # here: at the top these would be names of this module
    from importlib import import_module
    from pathlib import Path

    root = Path(__file__).parent
    if name.isidentifier() and (root / name / "__init__.pyi").exists():
        return import_module(f"{__name__}.{name}")  # mh.circuits, whether or not somebody has imported it
    if (root / f"{name}.py").exists():  # what `from manyheads import units` asks first: answered without a search
        raise AttributeError(
            f"module 'manyheads' has no attribute {name!r}: it is a module, `import manyheads.{name}`."
        )
    from manyheads.base import nearest

    faces = {} if name.startswith("_") else {
        ".".join(stub.parent.relative_to(root.parent).parts): stub for stub in sorted(root.glob("*/**/__init__.pyi"))
    }  # fmt: skip
    offered = re.compile(rf"^from .* import {re.escape(name)} as ", re.MULTILINE)
    for face, stub in faces.items():
        if offered.search(stub.read_text(encoding="utf-8")):
            raise AttributeError(f"module 'manyheads' has no attribute {name!r}: it is {face}.{name}.")
    meant = " or ".join(nearest(name, __all__))
    raise AttributeError(
        f"module 'manyheads' has no attribute {name!r}; it has {', '.join(__all__)}."
        f"{f' Did you mean {meant}?' if meant else ''}"
    )


def __dir__() -> list[str]:
    return sorted(__all__)
