"""The errors that manyheads raises, one class for each kind of fault.

Catch `ManyHeadsError` for all of them. Each class also derives from the built-in exception that its kind of fault
usually raises, so `except ValueError` works without knowing this package. A message contains the request, the result
and a remedy, and needs no traceback to be understood.

A failed invariant of our own is an `assert` and has no class here: it is our fault, not the caller's.
"""

__all__ = [
    "AlertError",
    "EngineError",
    "FileAccessError",
    "GuardError",
    "HeadError",
    "LostProcessError",
    "ManyHeadsError",
    "ModelError",
    "PatternError",
    "PlanError",
    "RecordingError",
    "ShapeError",
    "StatisticError",
    "TextError",
    "WindowError",
]


class ManyHeadsError(Exception):
    """Any fault that manyheads reports: in a request, or in its data."""


class ShapeError(ManyHeadsError, ValueError, AssertionError):
    """Sizes that do not fit: of arrays, or of a model's dimensions (query heads against key/value heads, say).

    An AssertionError too, since that is what nn.MultiheadAttention raises, in whose place our layer may stand.
    """


class HeadError(ManyHeadsError, ValueError):
    """A head, or a set of heads, that cannot be read or that the model does not have."""


class ModelError(ManyHeadsError, RuntimeError):
    """A model that cannot be loaded or used, or whose attention we have no way into."""


class AlertError(ManyHeadsError, RuntimeError):
    """A head of a model that trains is past a limit, and the watch was told to stop the training there."""


class GuardError(ManyHeadsError, RuntimeError):
    """A recording would be wrong: weights times values is not what the model's own function returned."""


class LostProcessError(ManyHeadsError, RuntimeError):
    """Another process of this run is gone, or cannot be reached."""


class EngineError(ManyHeadsError, RuntimeError):
    """An engine that runs many processes (Ray) is not installed, does not answer, or has no room for what is asked."""


class RecordingError(ManyHeadsError, ValueError):
    """A recording, or a part of one, that is damaged, newer than this version, or lacks the requested data."""


class TextError(ManyHeadsError, ValueError):
    """A text that cannot be used: empty, not text, or longer than the limit."""


class StatisticError(ManyHeadsError, ValueError):
    """A statistic that is unknown, ill-defined, or requested of a source that cannot give it."""


class PatternError(StatisticError):
    """A user's pattern, a function of a text's tokens, that fails or names no positions.

    It ends a run, where a fault of one text would only leave that text out.
    """


class PlanError(ManyHeadsError, ValueError):
    """A plan of interventions that contradicts itself, or lacks what it needs (a corpus, a source head)."""


class WindowError(ManyHeadsError, MemoryError):
    """A window of weights too large to hold. Ask for fewer queries or keys, or for a statistic: it needs none."""


class FileAccessError(ManyHeadsError, OSError):
    """A file or folder that cannot be read or written."""
