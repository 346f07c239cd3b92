"""Where somebody may look over a layer's shoulder: see each attention call, and put other outputs in its place.

Our own layers have no interface of another library to wrap, so they ask here before they attend. This floor knows no
taps: a hook is anything with `wants` and `seen`. The list is replaced, never changed, under a lock: a layer in another
thread reads it whole, and pays one look at an empty tuple where nobody watches. Compiled layers are not watched.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor, nn

from manyheads.nn.masks import Mask
from manyheads.nn.mixing import Mixed
from manyheads.nn.rules import Rule


@dataclass(frozen=True, eq=False)
class LayerCall:
    """One attention call of one of our layers, before it is made: q and k after norm and rotation, heads not repeated.

    `run()` makes it, just as the unwatched layer would: per-head outputs before W^O and before any per-head output
    scale, and which way they were computed. The mask is read off when asked for: `mask()` costs O(q * k) where the
    caller gave masks. `crosses`: keys were handed in as another text.
    """

    module: nn.Module
    q: Float[Tensor, "b h q d"]
    k: Float[Tensor, "b g k d"]
    v: Float[Tensor, "b g k f"]
    rule: Rule
    mask: Callable[[], Mask]
    crosses: bool
    run: Callable[[], Mixed]


@runtime_checkable
class Hook(Protocol):
    """`wants` says whether a module is watched (from this thread); `seen` makes the call and returns its outputs."""

    def wants(self, module: nn.Module) -> bool: ...

    def seen(self, call: LayerCall) -> Tensor: ...


_LOCK = threading.Lock()
_hooks: tuple[Hook, ...] = ()


def watching(module: nn.Module) -> Hook | None:
    """The hook that wants this module's calls: the last one added, who may call `run()` and so reach no other."""
    return next((hook for hook in reversed(_hooks) if hook.wants(module)), None) if _hooks else None


def add_hook(hook: Hook) -> None:
    """Once: a hook that is there already stays where it is."""
    global _hooks
    with _LOCK:
        _hooks = _hooks if hook in _hooks else (*_hooks, hook)


def remove_hook(hook: Hook) -> None:
    global _hooks
    with _LOCK:
        _hooks = tuple(each for each in _hooks if each is not hook)
