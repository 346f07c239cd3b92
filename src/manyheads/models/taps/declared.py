"""`declare`: where the q, k and v of a module are that computes attention in a way that nobody can read.

While a declared module runs under a tap, nothing inside of it counts as a call. Its q, k and v are outputs of parts of
it or attributes that it sets; its heads' outputs are what its output projection gets, where edits act, or what it
returns. The guard compares the two.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from einops import rearrange
from torch import Tensor, nn

from manyheads.attention import Rule
from manyheads.base import whole
from manyheads.errors import ModelError
from manyheads.models.taps.by_hand import BY_ITSELF
from manyheads.models.taps.call import BY_DECLARATION
from manyheads.models.taps.open_taps import OPEN, RUNNING, RawCall, unwatched
from manyheads.models.weights.projections import OUTPUT_NAMES, QUERY, input_width

ATTRIBUTE = (
    "manyheads_declared"  # of a module or its class: a plain dict, so that a checkpoint of it needs no manyheads
)
OWN_NOTES = (BY_ITSELF, BY_DECLARATION)  # what is said of calls that are read off a module of one's own


class Declaration(NamedTuple):
    """The arguments of `declare`."""

    q: str
    k: str
    v: str
    out: str
    mask: str
    causal: bool
    scale: float | None
    num_heads: int | None


def declare(
    module: nn.Module | type[nn.Module],
    *,
    q: str,
    k: str,
    v: str,
    out: str = "",
    mask: str = "",
    causal: bool = False,
    scale: float | None = None,
    num_heads: int | None = None,
) -> None:
    """Tell where a module's q, k and v are, whose attention is computed in a way that cannot be read.

    - `module`: one module, or its class for all of them.
    - `q`, `k`, `v`: the name of a part of the module, whose output it is, or of an attribute that `forward` sets
      (`self.q = q`); as the scores see them (after rotation and norms). `[b, n, h * d]`, `[b, h, n, d]` or
      `[b, n, h, d]`.
    - `out`: the name of the output projection, which gets what the heads have read; "": the part called `proj`,
      `c_proj`, `o_proj`, `out`, `to_out`, `wo` or the like, or, without one, what the module returns is that.
    - `mask`: the name of an attribute that holds a mask: True where a query may look, or numbers that are added.
    - `causal`: whether a query sees no later key.
    - `scale`: of the scores; None: `d ** -0.5`.
    - `num_heads`: of q; None: the module's own `num_heads` (`n_head` ...), or the axes of q.

    Whatever reads the module (`record`, `measure`, `watch`, `applied`) then takes these, and checks them: what
    softmax(scale q k^T + mask) v gives must be what the heads have read, or there is a GuardError. Errors: ModelError
    for what is not a module, and for a name that a module does not have, mostly when it is read.
    """
    is_class = isinstance(module, type) and issubclass(module, nn.Module)
    if not (is_class or isinstance(module, nn.Module)):
        raise ModelError(f"declare takes a torch module or its class, not a {type(module).__name__}.")
    if num_heads is not None:
        whole("num_heads", num_heads, 1, ModelError)
    if out and isinstance(module, nn.Module) and out not in dict(module.named_modules()):
        raise ModelError(f"{type(module).__name__} has no part {out!r}: name the output projection.")
    setattr(module, ATTRIBUTE, Declaration(q, k, v, out, mask, causal, scale, num_heads)._asdict())


@dataclass(eq=False)
class _Running:
    """A declared module that runs. `parts`: by id, whose output is which of q, k and v."""

    module: nn.Module
    says: Declaration
    parts: dict[int, str]
    projection: nn.Module | None
    tensors: dict[str, Tensor] = field(default_factory=dict)
    shown: bool = False

    def read(self, out: Tensor) -> Tensor:
        """Show the call: `out`, or what edits made of it."""
        self.shown = True
        with unwatched():
            raw, axes = self._call(out)
        edited = raw.show(OPEN.on(self.module))
        return out if edited is raw.out else rearrange(edited, f"b h n f -> {axes}")

    @property
    def place(self) -> str:
        return f"module {OPEN.on(self.module)[0].paths[id(self.module)]!r} ({type(self.module).__name__})"

    def _call(self, out: Tensor) -> tuple[RawCall, str]:
        q, k, v = (self.tensor(name) for name in ("q", "k", "v"))
        own = next((n for name in QUERY if isinstance(n := getattr(self.module, name, None), int)), None)
        heads = self.says.num_heads or own
        if heads is None and q.ndim == 4:
            heads = q.shape[1]
        if heads is None:
            raise ModelError(f"{self.place}: give num_heads= to mh.declare.")
        q = by_head(q, heads, f"{self.place}: q")
        width = q.shape[3]
        k = by_head(k, k.shape[-1] // width if k.ndim == 3 else None, f"{self.place}: k")
        v = by_head(v, k.shape[1], f"{self.place}: v")
        axes = "b n (h f)" if out.ndim == 3 else "b h n f" if out.shape[1:3] == q.shape[1:3] else "b n h f"
        num_elements = len(q) * heads * q.shape[2] * v.shape[3]
        if k.shape[3] != width or v.shape[2] != k.shape[2] or out.ndim not in (3, 4) or out.numel() != num_elements:
            sizes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in zip("qkv", (q, k, v), strict=True))
            raise ModelError(
                f"{self.place}: what mh.declare names does not fit: {sizes} (text, head, position, width), and its "
                f"heads return {tuple(out.shape)}."
            )
        taps = OPEN.on(self.module)
        attended = getattr(self.module, self.says.mask) if self.says.mask else None
        mask, bias = taps[0].masks.plain(attended, 4, q.shape[2], k.shape[2], self.says.causal)
        rule = Rule(width**-0.5 if self.says.scale is None else self.says.scale, bias=bias)
        heads_out = rearrange(out, f"{axes} -> b h n f", **({"h": heads} if out.ndim == 3 else {}))
        return RawCall(self.module, q, k, v, mask, rule, heads_out, note=BY_DECLARATION), axes

    def tensor(self, name: str) -> Tensor:
        source = getattr(self.says, name)
        value = self.tensors.get(name, getattr(self.module, source, None))
        if not isinstance(value, Tensor) or value.ndim not in (3, 4):
            raise ModelError(
                f"{self.place}: {name}={source!r} of mh.declare is neither a part that ran nor an attribute that holds "
                f"a tensor of 3 or 4 axes: name one that is."
            )
        return value


def by_head(x: Tensor, heads: int | None, name: str) -> Tensor:
    """(text, head, position, width) of what a projection returns, or of q as attention functions take it."""
    if x.ndim == 4:
        return x if heads is None or x.shape[1] == heads else x.transpose(1, 2)
    if not heads or x.shape[-1] % heads:
        raise ModelError(
            f"{name} of mh.declare is {x.shape[-1]} wide, which {heads} heads do not divide: say in "
            f"num_heads= how many there are."
        )
    return rearrange(x, "b n (h d) -> b h n d", h=heads)


class _Stack(threading.local):
    """The declared modules that this thread is running, outermost first."""

    def __init__(self) -> None:
        self.running: list[_Running] = []


_STACK = _Stack()


def enter(module: nn.Module, args: Sequence[Any]) -> tuple[Any, ...] | None:
    """A module begins: one that is declared, or the output projection of one that runs, whose inputs edits change."""
    for running in _STACK.running[-1:]:
        if module is running.projection and not running.shown and args and isinstance(args[0], Tensor):
            out = running.read(args[0])
            return None if out is args[0] else (out, *args[1:])
    if (says := getattr(module, ATTRIBUTE, None)) is not None:
        declaration, parts = Declaration(**says), dict(module.named_modules())
        named = {id(parts[says[name]]): name for name in ("q", "k", "v") if says[name] in parts}
        outs = [declaration.out] if declaration.out else OUTPUT_NAMES
        projection = next((parts[name] for name in outs if name in parts and input_width(parts[name])), None)
        _STACK.running.append(_Running(module, declaration, named, projection))
        RUNNING.calls += 1
    return None


def leave(module: nn.Module, output: object) -> object:
    """A module has run: part of a declared one, or a declared one itself, whose output edits may change."""
    if not _STACK.running:
        return None
    running = _STACK.running[-1]
    if id(module) in running.parts and isinstance(output, Tensor):
        running.tensors[running.parts[id(module)]] = output
    if module is not running.module:
        return None
    _STACK.running.pop()
    RUNNING.calls -= 1
    if running.shown or not isinstance(output, Tensor):
        return None
    edited = running.read(output)
    return None if edited is output else edited


def forget() -> None:
    """What still runs is no longer under a tap."""
    while _STACK.running and _STACK.running[-1].module not in RUNNING.modules:
        _STACK.running.pop()
        RUNNING.calls -= 1
