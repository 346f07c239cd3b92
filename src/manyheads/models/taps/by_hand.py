"""The fourth way in: attention that a module computes itself, by a product, a softmax and a product.

    scores = q @ k.transpose(-2, -1) / d**0.5          # the first product: its operands are q and k
    scores = scores.masked_fill(~mask, -inf)           # steps, of which each treats every score by itself
    weights = dropout(scores.softmax(-1))              # along the keys
    out = weights @ v                                  # the second product, over the same axis

Any product may be the first of two, so each is remembered while its result lives, until the pass ends (`Scores`). What
the steps do to 0, 1024 and -3 says what they do to any score: `slope * score + shift`. The slope is the scale; a shift
so low that no weight is left hides the cell, any other is a bias. Nothing is taken on trust: the guard compares what q,
k, scale, mask and bias give with what the module computed. What is read otherwise is noted by the module's name
(`Unread`).

Memory: q, k and the masks of a module, while its scores or weights live. Masks and biases are read in the size in which
the module has them; where scores are cut into other axes after a mask, or cells are set by an index, as whole maps of
one layer.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.attention import Rule
from manyheads.errors import ModelError
from manyheads.models.taps.call import CapturedLse
from manyheads.models.taps.open_taps import OPEN, RUNNING, RawCall, Unread, UnreadError, carrying_out, unwatched

SOFTMAX = {torch.softmax, Tensor.softmax, F.softmax, torch.special.softmax}
PRODUCT = {
    torch.matmul, Tensor.matmul, Tensor.__matmul__, Tensor.__rmatmul__, torch.bmm, Tensor.bmm, torch.mm, Tensor.mm,
    torch.einsum, torch.baddbmm, Tensor.baddbmm,
}  # fmt: skip
FOLD = {torch.reshape, Tensor.reshape, Tensor.view, torch.flatten, Tensor.flatten}
DROPOUT = {F.dropout, torch.dropout}
WATCHED = frozenset({*SOFTMAX, *PRODUCT, *FOLD})
"""What is looked at always; any other function only where it gets scores or weights."""

# By name, without the underscores of methods in place and of operators.
BY_CELL = {
    "mul", "multiply", "rmul", "imul", "div", "divide", "true_divide", "truediv", "itruediv", "add", "radd", "iadd",
    "sub", "subtract", "rsub", "isub", "neg", "masked_fill", "where", "setitem", "max", "maximum",
}  # fmt: skip
SUMS = {"add", "radd", "iadd", "sub", "subtract", "rsub", "isub"}
IN_ORDER = {"view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze", "view_as", "reshape_as", "getitem"}
UNCHANGED = {
    "to", "float", "half", "bfloat16", "double", "type", "type_as", "contiguous", "clone", "detach", "requires_grad",
    "nan_to_num",
}  # fmt: skip
STEPS = BY_CELL | IN_ORDER | UNCHANGED
MIXING = {
    "transpose", "permute", "swapaxes", "swapdims", "movedim", "moveaxis", "get", "cat", "concat", "pad", "conv2d",
    "roll",
}  # fmt: skip
# What stands in place of a softmax: a layer of such weights has none that can be read, and is named.
ACTIVATIONS = {
    "relu", "leaky_relu", "relu6", "elu", "gelu", "silu", "softplus", "sigmoid", "hardsigmoid", "tanh", "exp", "square",
    "pow", "clamp", "clamp_min", "clip", "abs",
}  # fmt: skip

MOST_STEPS = 16  # of a residual stream that is a product, and no score, there are ever more
HIDDEN = -9e3  # from here down a shift leaves no weight, and is a mask: BERT's is -10,000
FILLED = -100.0  # the same of a cell that does not depend on its score
FAR, NEAR = 1024.0, -3.0  # scores that say the slope, to float32's precision beside a bias; and whether it is one
BY_ITSELF = "computed by the module itself"
HOLE = object()  # the place of the scores among a step's arguments


class Step(NamedTuple):
    """One function on the way from the first product to the softmax. `shape`: of the scores that it got; `section`: how
    often their axes had been cut again before."""

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    shape: torch.Size
    section: int

    @property
    def name(self) -> str:
        return name_of(self.func)

    @property
    def tensors(self) -> list[Tensor]:
        return [x for x in (*self.args, *self.kwargs.values()) if isinstance(x, Tensor)]

    @property
    def acts(self) -> bool:
        """Whether it may treat cells unlike."""
        return self.name == "setitem" or (self.name in BY_CELL and bool(self.tensors))

    def __call__(self, scores: Tensor) -> Tensor:
        args = [scores if x is HOLE else x for x in self.args]
        kwargs = {name: scores if x is HOLE else x for name, x in self.kwargs.items()}
        result = self.func(*args, **kwargs)
        return scores if self.name == "setitem" else result


@dataclass(frozen=True, eq=False)
class Product:
    """A product of two tensors. `axes`: a letter for each axis of the left one, of the right one, of the result."""

    left: Tensor
    right: Tensor
    axes: tuple[str, str, str]
    shape: torch.Size

    @staticmethod
    def of(
        func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Tensor
    ) -> Product | None:
        """None for a product of more or fewer than two matrices."""
        if func is torch.einsum:
            equation, *operands = args
            operands = operands[0] if len(operands) == 1 and isinstance(operands[0], list | tuple) else operands
            if not isinstance(equation, str) or len(operands) != 2:
                return None
            left, right = operands
            axes = letters(equation, left.ndim, right.ndim, result.ndim)
            if axes is None or set(axes[0]) & set(axes[1]) <= set(axes[2]):  # slopes by distances: nothing is summed
                return None
            return Product(left, right, axes, result.shape)
        tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
        left, right = tensors[-1:-3:-1] if func is Tensor.__rmatmul__ else tensors[-2:]
        if min(left.ndim, right.ndim) < 2:
            return None
        lead = "ABCDEFGH"[: result.ndim - 2]
        names = (lead[len(lead) - x.ndim + 2 :] for x in (left, right))
        axes = (f"{next(names)}ix", f"{next(names)}xj", f"{lead}ij")
        return Product(left, right, axes, result.shape)


def letters(equation: str, *sizes: int) -> tuple[str, str, str] | None:
    """The letters of an einsum's two operands and its result, dots written out; None where one stands there twice."""
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    parts = inputs.split(",")
    if not arrow:
        counts = {x: inputs.count(x) for x in inputs if x.isalpha()}
        output = ("..." if "..." in inputs else "") + "".join(sorted(x for x, n in counts.items() if n == 1))
    parts = [*parts, output]
    spelled = []
    for part, size in zip(parts, sizes, strict=True):
        missing = size - len(part.replace("...", ""))
        unused = [x for x in "ÀÁÂÃÄÅÆÇ" if x not in equation]
        spelled.append(part.replace("...", "".join(unused[len(unused) - missing :])))
    if any(len(set(part)) < len(part) for part in spelled):
        return None
    return spelled[0], spelled[1], spelled[2]


@dataclass(frozen=True, eq=False)
class Scores:
    """The result of a product that a module made, or what steps have made of it. `unread`: why nobody can say what they
    are. `activation`: the first function that may stand in place of their softmax."""

    module: nn.Module
    product: Product | None
    shape: torch.Size
    steps: tuple[Step, ...] = ()
    unread: str = ""
    activation: str = ""

    def then(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Tensor
    ) -> Scores:
        """The scores after one more function."""
        name = name_of(func)
        if name in ACTIVATIONS and not self.activation:
            why = self.unread or f"{name} changes its scores before their softmax"
            return replace(self, steps=(), unread=why, activation=name)
        if self.unread or name in UNCHANGED:
            return self
        if name not in STEPS:
            what = "an exchange of axes" if name == "get" else name
            # The product is kept where the cells are: a second one may follow, with no softmax between.
            product = self.product if result.shape == self.shape else None
            return replace(self, product=product, steps=(), unread=f"{what} changes its scores before their softmax")
        if result.numel() != self.shape.numel():
            why = f"{name} cuts off or repeats scores before their softmax"
            return replace(self, product=None, steps=(), unread=why)
        section = 0
        if self.steps:
            section = self.steps[-1].section + (self.steps[-1].name in IN_ORDER)
        step = Step(func, args, kwargs, self.shape, section)
        return replace(self, shape=result.shape, steps=(*self.steps, step))


@dataclass(frozen=True, eq=False)
class Weights:
    """The softmax of scores along one axis, or what a module has made of it since.

    `softened`: the softmax itself; `lse`: of each row, where it is as exact as our own. `dropout`: with which
    probability weights were left out since. `used`: whether values have been read by them.
    """

    scores: Scores | None
    axis: int
    softened: Tensor
    lse: Tensor | None
    dropout: float = 0.0
    unread: str = ""
    used: bool = False


class _Maps(threading.local):
    """The scores and weights of a forward pass, as long as they live; and tensors whose texts and heads were
    folded into one axis, with the sizes of the two."""

    def __init__(self) -> None:
        self.nodes: dict[int, tuple[weakref.ref[Tensor], Scores | Weights]] = {}
        self.folds: dict[int, tuple[weakref.ref[Tensor], torch.Size]] = {}

    def of(self, values: Iterable[object]) -> list[tuple[Tensor, Scores | Weights]]:
        """Those among the arguments of a function that are known."""
        known: list[tuple[Tensor, Scores | Weights]] = []
        for value in values:
            if isinstance(value, Tensor):
                # An id is given anew when its tensor is gone, and then the reference is dead or of another tensor.
                entry = self.nodes.get(id(value))
                if entry is not None and entry[0]() is value:
                    known.append((value, entry[1]))
            elif isinstance(value, list | tuple):
                known += self.of(value)
        return known

    def remember(self, tensor: Tensor, node: Scores | Weights) -> None:
        self.nodes[id(tensor)] = (_reference(tensor, self.nodes), node)

    def folded(self, tensor: Tensor) -> torch.Size | None:
        entry = self.folds.get(id(tensor))
        return entry[1] if entry is not None and entry[0]() is tensor else None


def _reference(tensor: Tensor, entries: dict[int, Any]) -> weakref.ref[Tensor]:
    """A weak reference to a tensor whose entry goes when the tensor does."""
    key = id(tensor)

    def forget(reference: weakref.ref[Tensor]) -> None:
        if key in entries and entries[key][0] is reference:
            del entries[key]

    return weakref.ref(tensor, forget)


MAPS = _Maps()


def clear() -> None:
    """A forward pass begins."""
    MAPS.nodes.clear()
    MAPS.folds.clear()


def carry_out(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
    """What the function returns, remembered where it is scores or weights; of the second product what edits make."""
    RUNNING.calls += 1  # another tap's function mode, further out, sees the same call: it is ours
    try:
        result = func(*args, **kwargs)
    finally:
        RUNNING.calls -= 1
    values = (*args, *kwargs.values())
    known = MAPS.of(values)
    if func is Tensor.__setitem__:
        if known and known[0][0] is args[0] and isinstance(known[0][1], Scores):
            _follow(func, args, kwargs, args[0], known)
    elif not isinstance(result, Tensor):
        pass
    elif func in SOFTMAX:
        _soften(args, kwargs, result, known)
    elif func in PRODUCT:
        weights = [(x, node) for x, node in known if isinstance(node, Weights)]
        product = Product.of(func, args, kwargs, result)
        if len(weights) == 1:
            return _read_values(product, *weights[0], result)
        if product is not None and not weights:
            for tensor, node in known:
                if isinstance(node, Scores) and node.activation:
                    _name_unsoftened(product, tensor, node)
            scores = Scores(RUNNING.modules[-1], product, result.shape)
            if name_of(func) == "baddbmm":  # beta * input + alpha * product
                added = args[0] if args else kwargs["input"]
                alpha, beta = kwargs.get("alpha", 1), kwargs.get("beta", 1)
                steps: list[tuple[Callable[..., Any], Any]] = [(torch.mul, alpha)] if alpha != 1 else []
                steps += [(torch.add, added if beta == 1 else beta * added)] if beta != 0 else []
                for step, other in steps:
                    scores = scores.then(step, (HOLE, other), {}, result)
            MAPS.remember(result, scores)
    elif known and result.is_floating_point() and known[0][0] is _subject(func, args, kwargs, known[0][0]):
        _follow(func, args, kwargs, result, known)
    if func in FOLD and isinstance(result, Tensor) and result.ndim == 3:
        before = args[0].shape if args and isinstance(args[0], Tensor) else torch.Size()
        if len(before) == 4 and before[2:] == result.shape[1:]:
            MAPS.folds[id(result)] = (_reference(result, MAPS.folds), before[:2])
    return result


def name_of(func: Callable[..., Any]) -> str:
    return getattr(func, "__name__", type(func).__name__).strip("_")


def _subject(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], tensor: Tensor) -> object:
    """What a function changes: its first argument where another one only says a shape or a dtype, else the tensor."""
    name = name_of(func)
    if name.startswith("new_") or name.endswith("_like"):
        return None
    return args[0] if args and (name.endswith("_as") or name == "to") else tensor


def _follow(
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    result: Tensor,
    known: list[tuple[Tensor, Scores | Weights]],
) -> None:
    """Scores or weights go through one more function."""
    name = name_of(func)
    tensor, node = next((pair for pair in known if isinstance(pair[1], Weights)), known[0])
    if isinstance(node, Weights):
        if func in DROPOUT:
            # F.dropout(input, p=0.5, training=True), torch.dropout(input, p, train)
            named = dict(zip(("input", "p", "training"), args, strict=False)) | dict(kwargs)
            trains = named.get("training", named.get("train", True))
            dropped = max(node.dropout, float(named.get("p", 0.5)) if trains else 0.0)
            MAPS.remember(result, replace(node, dropout=dropped))
        elif name in STEPS and (node.scores is not None or name not in SUMS):  # a softmax of its own is not followed on
            MAPS.remember(result, node)
        elif name in MIXING and result.ndim >= 2:
            why = f"{'an exchange of axes' if name == 'get' else name} changes its weights before they read values"
            MAPS.remember(result, replace(node, unread=node.unread or why))
        return
    # One number a row moves all of its scores alike. A residual stream may be a product's result, and no scores.
    if result.ndim < 2 or result.shape[-1] == 1 or len(node.steps) >= MOST_STEPS:
        return
    if len({id(x) for x, _ in known}) > 1:
        MAPS.remember(result, replace(node, product=None, steps=(), unread="its scores are the sum of two products"))
        return
    args = tuple(HOLE if x is tensor else x for x in args)
    kwargs = {key: HOLE if x is tensor else x for key, x in kwargs.items()}
    MAPS.remember(result, node.then(func, args, kwargs, result))


def _soften(
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    result: Tensor,
    known: list[tuple[Tensor, Scores | Weights]],
) -> None:
    scores = known[0][1] if known and isinstance(known[0][1], Scores) else None
    if scores is None and result.ndim < 3:
        return
    source = args[0] if args else kwargs["input"]
    axis = kwargs.get("dim", args[1] if len(args) > 1 else None)
    lse, unread = None, ""
    if scores is None:
        unread = "its softmax is not of a product's result"
    elif not isinstance(axis, int):
        unread = "its softmax names no axis"
    else:
        unread = scores.unread
        # The largest score and its weight say the row's lse. Half types would round both.
        if source.dtype == result.dtype and result.dtype in (torch.float32, torch.float64) and result.numel():
            with torch.no_grad(), unwatched(), carrying_out():
                lse = source.amax(axis, keepdim=True) - result.amax(axis, keepdim=True).log()
    axis = axis % result.ndim if isinstance(axis, int) else -1
    MAPS.remember(result, Weights(scores, axis, result.detach(), lse, unread=unread))


def _name_unsoftened(second: Product, tensor: Tensor, scores: Scores) -> None:
    """Values are read by scores that went through an activation, and no softmax: the taps are told of the module.

    Nothing is said of a feed-forward layer, whose products are with parameters.
    """
    first, module = scores.product, RUNNING.modules[-1]
    if first is None or tensor.ndim < 3 or tensor.shape != first.shape:
        return
    left, right, out = second.axes
    own, other, values = (left, right, second.right) if second.left is tensor else (right, left, second.left)
    if own[-1] not in other or own[-1] in out or values.ndim < tensor.ndim:
        return  # a matrix without the axes of the scores is weights, however it was made
    if any(_is_parameter(x, owner) for x in (first.left, first.right, values) for owner in RUNNING.modules):
        return
    for tap in OPEN.on(module):
        reason = f"it reads values by scores after {scores.activation}, with no softmax"
        tap.unread[tap.paths[id(module)]] = Unread(type(module).__name__, reason)


def _read_values(product: Product | None, tensor: Tensor, weights: Weights, result: Tensor) -> Tensor:
    """The second product: its result, or what edits made of it."""
    module = RUNNING.modules[-1]
    taps = OPEN.on(module)
    if weights.used:
        if any(tap.edits for tap in taps):
            place = taps[0].paths[id(module)]
            raise ModelError(
                f"module {place!r} ({type(module).__name__}) reads values twice by the same weights, and an edit of "
                f"its heads would change the first reading alone: such a module can be recorded, and not edited."
            )
        return result
    try:
        if weights.unread or weights.scores is None:
            raise UnreadError(weights.unread)
        if product is None:
            raise UnreadError("its second product multiplies more than two tensors")
        # Products may also be modules of their own: the attention belongs to the one that holds both.
        within = (owner for owner in reversed(RUNNING.modules) if weights.scores.module in {*owner.modules()})
        if (owner := next(within, None)) is None:
            raise UnreadError("its two products are made by modules that have nothing in common")
        taps = OPEN.on(owner)
        with unwatched(), carrying_out():
            call, back = _Reading(owner, weights.scores, weights, product, tensor).call(result)
    except UnreadError as error:
        if result.ndim >= 3:
            for tap in taps:
                tap.unread[tap.paths[id(module)]] = Unread(type(module).__name__, str(error))
        return result
    MAPS.remember(tensor, replace(weights, used=True))
    edited = call.show(taps)
    return result if edited is call.out else back(edited)


@dataclass(eq=False)
class _Reading:
    """Both products of one attention call, and their axes: `key` and `row` of the map, `lead` the others."""

    module: nn.Module
    scores: Scores
    weights: Weights
    second: Product
    tensor: Tensor  # the weights as the second product got them

    def __post_init__(self) -> None:
        first = self.scores.product
        if first is None:
            raise UnreadError(self.scores.unread)
        self.first, self.cells = first, first.axes[2]
        self.same_axes = self.scores.shape == first.shape
        if not self.same_axes and self.weights.axis != len(self.scores.shape) - 1:
            raise UnreadError("its softmax runs along an axis other than its keys")
        self.key = self.cells[self.weights.axis if self.same_axes else -1]
        left, right, _ = first.axes
        sides = [(first.left, left), (first.right, right)]
        if (self.key in left) == (self.key in right):
            raise UnreadError("its softmax runs along an axis other than its keys")
        (self.k, self.k_axes), (self.q, self.q_axes) = sides if self.key in left else sides[::-1]
        sizes = dict(zip(self.cells, first.shape, strict=True))
        summed = [x for x in self.q_axes if x in self.k_axes and x not in self.cells]
        rows = [x for x in self.cells if x in self.q_axes and x not in self.k_axes]
        if len(summed) != 1 or not rows or {*left, *right} != {*self.cells, *summed}:
            raise UnreadError("its first product does not multiply queries and keys")
        self.width = summed[0]
        # Where heads share their keys, and these lack the axis of heads, rows are those that are as many as keys.
        self.row = next((x for x in rows if len(rows) > 1 and sizes[x] == sizes[self.key]), rows[-1])
        self.lead = [x for x in self.cells if x not in (self.row, self.key)]
        self.lead_sizes = [sizes[x] for x in self.lead]
        self.num_rows, self.num_keys = sizes[self.row], sizes[self.key]
        has_lead = any(x in self.k_axes for x in self.lead)
        if (self.lead and not has_lead) or any(_is_parameter(self.k, x) for x in (self.module, self.scores.module)):
            raise UnreadError("its keys are the same for all texts")
        self._match_second()
        self.texts_and_heads()

    def _match_second(self) -> None:
        """The axes of the second product, in the letters of its own."""
        second = self.second
        left, right, out = second.axes
        own_axes, self.v, self.v_axes = (
            (left, second.right, right) if second.left is self.tensor else (right, second.left, left)
        )
        self.lead_v_sizes = list(self.tensor.shape)
        if self.tensor.shape == self.first.shape and self.same_axes:
            named = dict(zip(self.cells, own_axes, strict=True))
            key, row, self.lead_v = named[self.key], named[self.row], [named[x] for x in self.lead]
            self.lead_v_sizes = self.lead_sizes
        elif self.cells[-2:] == self.row + self.key and self.tensor.shape[-2:] == self.first.shape[-2:]:
            *self.lead_v, row, key = own_axes
            self.lead_v_sizes = self.lead_v_sizes[:-2]
        else:
            raise UnreadError("the axes of its weights are exchanged before they read values")
        if key not in self.v_axes or key in out:
            raise UnreadError(
                "its softmax runs along an axis other than the one that its product with values sums over"
            )
        width = [x for x in self.v_axes if x not in own_axes]
        if len(width) != 1 or row in self.v_axes or set(out) != {*self.lead_v, row, *width}:
            raise UnreadError("its second product does not multiply weights and values")
        self.v_order, self.out_order, self.out_axes = [*self.lead_v, key, *width], [*self.lead_v, row, *width], out

    def texts_and_heads(self) -> None:
        """How many texts and heads there are, from what is seen of the axes that are neither rows nor keys.

        Two such axes are texts and heads. One holds both where something says so: the scores stood in four axes, or q
        or v did; or else what the module read says how many texts there are.
        """
        sizes, texts = self.lead_sizes, self._num_texts()
        seen = [x[:-2] for x in (self.tensor.shape, self.scores.shape, *(step.shape for step in self.scores.steps))
                if len(x) == 4 and tuple(x[-2:]) == (self.num_rows, self.num_keys)]  # fmt: skip
        seen += [pair for pair in map(MAPS.folded, (self.q, self.v)) if pair]
        seen = [pair for pair in seen if len(sizes) == 1 and pair.numel() == sizes[0]]
        self.shared = False
        if len(sizes) == 2:
            pair = tuple(sizes)
        elif not sizes:
            pair = (1, 1)
        elif len(sizes) == 1:
            number = texts if texts and sizes[0] % texts == 0 else sizes[0]
            pair = tuple(seen[0]) if seen else (number, sizes[0] // number)
        else:
            last = self.lead[-1]
            # Heads in groups that share their keys: the last axis is within a group.
            self.shared = len(sizes) == 3 and (last not in self.k_axes or self._size(self.k, self.k_axes, last) == 1)
            heads = sizes[-1] * (sizes[-2] if self.shared else 1)
            pair = (torch.Size(sizes).numel() // heads, heads)
        self.pair = pair
        # Heads before texts, as some write it: only where what the module read tells them apart.
        self.turned = texts is not None and pair[0] != texts and pair[1] == texts and len(sizes) in (1, 2)

    @staticmethod
    def _size(x: Tensor, axes: str, axis: str) -> int:
        return x.shape[axes.index(axis)]

    def _num_texts(self) -> int | None:
        """How many texts the innermost module read whose input has as many positions as there are rows."""
        for module in reversed(RUNNING.modules):
            shape = RUNNING.inputs.get(id(module), torch.Size())
            if len(shape) in (2, 3) and shape[1] == self.num_rows:
                return shape[0]
            if len(shape) == 3 and shape[0] == self.num_rows:
                return shape[1]
            if len(shape) == 4 and self.num_rows in (shape[1] * shape[2], shape[2] * shape[3]):  # pictures
                return shape[0]
            if len(shape) == 2 and shape[0] == self.num_rows:
                return 1
        return None

    def four_axes(self, x: Tensor, axes: str, order: Sequence[str], sizes: Sequence[int]) -> Tensor:
        """A tensor as (text, head, ...), in the order of the letters; `sizes` are those of all axes but the last two.

        An axis that it lacks has size 1; so may one over which it is the same, where there are four axes already.
        """
        x = x.permute([axes.index(letter) for letter in order if letter in axes])
        for place, letter in enumerate(order):
            if letter not in axes:
                x = x.unsqueeze(place)
        lead, rest = x.shape[:-2], x.shape[-2:]
        if len(sizes) == 2:
            x = x if self.pair == tuple(sizes) or all(size == 1 for size in lead) else self._refuse()
        elif all(size == 1 for size in lead):
            x = x.reshape(1, 1, *rest)
        elif self.shared and lead[-1] == 1:  # keys of groups
            x = x.expand(*sizes[:-1], 1, *rest).reshape(sizes[0], sizes[1], *rest)
        else:
            x = x.expand(*sizes, *rest).reshape(*self.pair, *rest)
        return x.transpose(0, 1) if self.turned else x

    @staticmethod
    def _refuse() -> Tensor:
        raise UnreadError("its scores and its weights have texts and heads on different axes")

    def of_cells(self, x: Tensor, shape: Sequence[int] | None = None) -> Tensor:
        """The same of a tensor with the axes of scores, where those had this shape; axes over which it does not change
        may have size 1."""
        shape = self.scores.shape if shape is None else torch.Size(shape)
        is_four = tuple(shape) == (*self.pair, self.num_rows, self.num_keys) and len(self.cells) == 3
        if is_four and x.ndim == 4 and not self.turned:
            return x
        if shape != self.first.shape or x.ndim != len(self.cells):
            if x.numel() == 1:
                x = x.reshape([1] * len(self.cells))
            else:
                last = x.shape[-1]  # 1 of what is one number a row
                x = x.expand(*shape[:-1], last).reshape(*self.first.shape[:-1], last)
        return self.four_axes(x, self.cells, [*self.lead, self.row, self.key], self.lead_sizes)

    def call(self, out: Tensor) -> tuple[RawCall, Callable[[Tensor], Tensor]]:
        """The call, and what brings edited outputs of heads back into the axes of the second product."""
        scores, weights, module = self.scores, self.weights, self.module
        q = self.four_axes(self.q, self.q_axes, [*self.lead, self.row, self.width], self.lead_sizes)
        k = self.four_axes(self.k, self.k_axes, [*self.lead, self.key, self.width], self.lead_sizes)
        v = self.four_axes(self.v, self.v_axes, self.v_order, self.lead_v_sizes)
        arranged = out.permute([self.out_axes.index(letter) for letter in self.out_order])
        outputs = self.four_axes(out, self.out_axes, self.out_order, self.lead_v_sizes)
        num_texts, num_heads = self.pair[::-1] if self.turned else self.pair
        groups = max(k.shape[1], v.shape[1])
        q = q.expand(num_texts, num_heads, -1, -1)
        k, v = (x.expand(num_texts, groups, -1, -1) for x in (k, v))
        with torch.no_grad():
            shift, slope, hidden, shape = effect_of_steps(scores, weights.softened)
            visible, masks = ~hidden, OPEN.on(module)[0].masks
            # Read of the device by one copy: the least and the largest scale, and whether there is a mask or a bias.
            scale, most, is_masked, is_biased = torch.stack(
                [torch.where(hidden, torch.inf, slope).amin(), torch.where(hidden, -torch.inf, slope).amax(),
                 hidden.any().to(slope.dtype), (visible & (shift != 0)).any().to(slope.dtype)]
            ).tolist()  # fmt: skip
            # What is added to a whole row changes no weight: a maximum, say, that is taken off before the softmax.
            moved = bool(is_biased and not is_masked and shift.shape[-1] == 1 and self.cells[-1] == self.key)
            added = visible if is_masked and not is_biased else None
            if is_biased and not moved:
                added = shift.masked_fill_(hidden, -torch.inf).to(weights.softened.dtype)
            added = None if added is None else self.of_cells(added, shape)
            mask, bias = masks.plain(added, 4, self.num_rows, self.num_keys, False)
            # Beside a bias float32 rounds the slope: steps by plain numbers say it exactly, where no other changes it.
            exact = scale_by_numbers(scores.steps)
            if abs(most - exact) + abs(scale - exact) <= 1e-5 * abs(exact):
                scale = most = exact
            if most - scale > (close := 1e-5 * max(abs(most), abs(scale))):  # a scale for each head or row: q bears it
                low, high = torch.where(hidden, torch.inf, slope), torch.where(hidden, -torch.inf, slope)
                axis = self.cells.index(self.key) if len(shape) == len(self.cells) else -1
                low, high = low.amin(axis, keepdim=True), high.amax(axis, keepdim=True)
                if bool((high - low > close).any()):
                    raise UnreadError("its scores are scaled cell by cell")
                q, scale = q * self.of_cells(high.nan_to_num(neginf=0.0).to(q.dtype), shape), 1.0
            elif scale == 0:
                raise UnreadError("its softmax is over cells that do not depend on q and k")
            lse = None if weights.lse is None or moved else CapturedLse(self.of_cells(weights.lse)[..., 0], "")
            softened = self.of_cells(weights.softened) if weights.dropout else None
        # Where every cell is hidden there is no scale, and no weight to be scaled.
        rule = Rule(scale if scale < torch.inf else 1.0, bias=bias)
        raw = RawCall(
            module, q, k, v, mask, rule, outputs, lse, dropout=weights.dropout, note=BY_ITSELF, weights=softened
        )

        def back(edited: Tensor) -> Tensor:
            edited = edited.transpose(0, 1) if self.turned else edited
            order = [self.out_order.index(letter) for letter in self.out_axes]
            return edited.reshape(arranged.shape).permute(order)

        return raw, back


def effect_of_steps(scores: Scores, weights: Tensor) -> tuple[Tensor, Tensor, Tensor, torch.Size]:
    """What all steps do to a score: shift, slope and whether it is hidden, of each cell; and the shape of the scores
    when they did it.

    Cells that all fare alike share an axis of size 1. Errors: UnreadError where the steps are no such function.
    """
    steps, shape = scores.steps, scores.shape
    acting = [step for step in steps if step.acts]
    if len({step.section for step in acting}) <= 1:
        shape = acting[0].shape if acting else shape
        start = torch.Size([1] * len(shape))
        if any(step.name == "setitem" for step in acting):
            start = shape
        else:
            start = torch.broadcast_shapes(start, *(x.shape for step in acting for x in step.tensors))
        shape = torch.Size([*[1] * (len(start) - len(shape)), *shape])
        steps = tuple(step for step in steps if step.name in BY_CELL)
    else:  # masks act on scores that are cut into axes one way and another
        assert scores.product is not None
        start = scores.product.shape
    dtype = torch.float64 if weights.dtype == torch.float64 or not acting else torch.float32
    device = weights.device if acting else "cpu"  # where all cells fare alike, nothing waits for the device

    def at(score: float) -> Tensor:
        x = torch.full(start, score, dtype=dtype, device=device)
        for step in steps:
            x = step(x)
        return x

    # In place, since these may be as large as the module's own maps.
    shift = at(0.0)
    slope = at(FAR).sub_(shift).div_(FAR)
    hidden = (shift <= HIDDEN) | ((slope == 0) & (shift <= FILLED))
    off = at(NEAR).sub_(shift).sub_(slope, alpha=NEAR).abs_()
    if not bool(((off <= 1e-4 + 1e-6 * shift.abs()) | hidden).all()):
        raise UnreadError("its scores go through a function that is not a scale, mask or bias")
    return shift, slope, hidden, shape


def scale_by_numbers(steps: Sequence[Step]) -> float:
    """What the steps without a tensor make of a score of 1, less what they make of 0."""
    x = torch.tensor([0.0, 1.0], dtype=torch.float64, device="cpu")
    for step in steps:
        if step.name in BY_CELL and not step.acts:
            x = step(x)
    return float(x[1] - x[0])


def _is_parameter(x: Tensor, module: nn.Module) -> bool:
    """Whether a tensor is a parameter of the module, or a view of one."""
    own = {parameter.untyped_storage().data_ptr() for parameter in module.parameters(recurse=False)}
    return bool(own) and x.untyped_storage().data_ptr() in own


__all__ = ["BY_ITSELF", "MAPS", "WATCHED", "carry_out", "clear"]
