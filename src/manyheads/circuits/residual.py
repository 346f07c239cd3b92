"""The residual stream of one forward pass, with everything that branches off it held as it acted.

What a head, a feed-forward or an embedding adds to the stream reaches the logits by two ways: straight along it, and
through later heads and feed-forwards that read it. Direct attribution is about the first. `held` runs the model so
that only the first is differentiable: each attention module and each feed-forward runs without gradient and its result
enters the stream as a leaf; each norm on the way keeps its scale (mean and standard deviation of that run), each
activation on the way the share that it let through. The map from leaves to logits is then linear, whatever the
architecture (pre-norm, post-norm, norms after a branch, parallel branches, multipliers), and one backward pass, which
meets additions and norms only, gives the gradient in every leaf: what it adds is gradient times leaf.

The same run says why a head looks somewhere (`circuits.why`): with `reads`, the layers named there are differentiable
as far as their q and k, norms of these held as well, and the run ends with the last of them.

Nothing is believed. `require_linear` walks the graph from the logits and refuses whatever is not known to be linear, by
name; a norm whose scale cannot be told from its input and output is refused; and whoever adds up compares the sum with
the model's own logits. The model is not changed: hooks, for this thread alone, taken off at the end.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.autograd.graph import Node
from torch.overrides import TorchFunctionMode

from manyheads.edits import Branches, exact
from manyheads.errors import ModelError
from manyheads.models import AttentionCall, tap
from manyheads.models.taps import RawCall
from manyheads.models.weights import is_norm, is_transposed, weight_by_head
from manyheads.spec import ModelSpec, Site

NORM_FIT = {torch.float64: 1e-5, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}
"""How far a norm's output may be from a scale, a gain and a bias times its input, as a share of the output.

In float64 as well, many models compute their norms in float32.
"""
LINEAR = re.compile(
    r"(Add|Sub|Neg|View|UnsafeView|ReshapeAlias|Reshape|Clone|Slice|Select|Index|IndexSelect|Alias|ToCopy|T|Transpose|"
    r"Permute|Unsqueeze|Squeeze|Expand|Cat|Stack|Sum|Split|SplitWithSizes|Unbind|ConstantPadNd|Contiguous|AsStrided|"
    r"MovedimBackward|Roll|Flatten|Unflatten|Detach|CopySlices|CopyBackwards|_Held|Gather|Where|MaskedFill|"
    r"Mul|Div|Mm|Bmm|Addmm|Linear|Matmul|Mv)(Backward)?\d*"
)
"""Steps of autograd that are linear in what they differentiate, the last row as long as that is one of their inputs."""


ACTIVATIONS = {F.gelu, F.relu, F.silu, F.tanh, torch.tanh, torch.relu}


class NormForm(NamedTuple):
    """A norm as it acted: `y = slope * x + bias`, where `x` is centred first if `centres`.

    `slope` is each row's scale times the weights' `gain` (1 where there is none), as far as the output shows it with
    the model's own rounding in it; `rest` is the rounding where `x` is next to nothing and no slope can hold it.
    """

    centres: bool
    gain: Float[Tensor, "m"]
    slope: Float[Tensor, "*rows m"]
    rest: Float[Tensor, "*rows m"]

    def applied(self, x: Float[Tensor, "*w p m"], positions: Int[Tensor, "p"]) -> Float[Tensor, "*w p m"]:
        """What the norm makes of parts of its input at some positions of the only text, its scale held."""
        x = x - x.mean(-1, keepdim=True) if self.centres else x
        return x * self.slope.reshape(-1, self.slope.shape[-1])[positions].to(x.dtype)

    def transposed(self, gradient: Float[Tensor, "*rows m"]) -> Float[Tensor, "*rows m"]:
        """The gradient in the norm's input, its scale held."""
        back = gradient.to(self.slope.dtype) * self.slope
        return (back - back.mean(-1, keepdim=True) if self.centres else back).to(gradient.dtype)


@torch.no_grad()
def norm_form(module: nn.Module, x: Float[Tensor, "*rows m"], y: Float[Tensor, "*rows m"], path: str) -> NormForm:
    """What a norm did to `x`, told from its weights and its output `y`. Errors: ModelError where no form fits.

    Centred or not, a gain of `weight`, `1 + weight` or none: the form that comes nearest is taken, each row's scale by
    least squares, so that neither the epsilon nor the dtype in which the module computes matters.
    """
    kind = torch.float64 if x.dtype == torch.float64 else torch.float32
    weight, bias = (getattr(module, name, None) for name in ("weight", "bias"))
    width = x.shape[-1]
    weight, bias = (
        # Of each head another one, where a norm of q or k has a row for each (Cohere).
        v.detach().to(kind) if isinstance(v, Tensor) and v.ndim and v.shape == x.shape[-v.ndim :] else None
        for v in (weight, bias)
    )
    flat, out = x.detach().to(kind), y.detach().to(kind)
    out = out if bias is None else out - bias
    size = out.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(kind).tiny)
    best: tuple[float, NormForm] | None = None
    for centres in (False, True):
        centred = flat - flat.mean(-1, keepdim=True) if centres else flat
        for gain in (flat.new_ones(width),) if weight is None else (weight, 1 + weight):
            read = centred * gain
            scale = (read * out).sum(-1, keepdim=True) / read.square().sum(-1, keepdim=True).clamp_min(1e-30)
            off = float(((out - scale * read).norm(dim=-1, keepdim=True) / size).max()) if len(out) else 0.0
            if best is None or off < best[0]:
                # The output's own ratio, so that sums hold to the last digit although the norm rounds; but not where
                # the input is next to nothing, and rounding most of the output.
                exact_scale = out / (scale * read)
                is_close = (exact_scale - 1).abs() <= NORM_FIT[x.dtype]
                slope = scale * gain * torch.where(is_close, exact_scale, 1)
                best = off, NormForm(centres, gain, slope, torch.where(is_close, 0, out - scale * read))
    assert best is not None
    if not best[0] <= NORM_FIT[x.dtype]:
        raise ModelError(
            f"{path} ({type(module).__name__}) is not a norm that is known: its output is "
            f"{best[0]:.2g} of its length away from a scale times its input, gain and bias. Nothing "
            f"that passes through it can be attributed."
        )
    return best[1]


if TYPE_CHECKING:

    class _Context(FunctionCtx):
        """What torch hands to both passes of a function: the first may put on it what it likes."""

        transposed: Callable[[Tensor], Tensor]

else:
    _Context = FunctionCtx


class _Held(torch.autograd.Function):
    """Gives `y`, which a module made of `x`; its gradient in `x` is what `transposed` makes of it."""

    @staticmethod
    def forward(ctx: _Context, x: Tensor, y: Tensor, transposed: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.transposed = transposed
        return y.clone()  # a result of its own: models add in place

    @staticmethod
    def backward(ctx: _Context, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.transposed(gradients[0]), None, None


def _passed(x: object, output: object) -> Tensor | None:
    """An activation's output, its gradient the share of each number that it let through; None where none is due."""
    if not torch.is_grad_enabled() or not isinstance(x, Tensor) or not x.requires_grad or output is x:
        return None
    if not isinstance(output, Tensor) or output.shape != x.shape:
        return None
    share = torch.where(x == 0, 0, output / x).detach()
    return _Held.apply(x, output.detach(), lambda g: g * share)


class CallsOfTorch(TorchFunctionMode):
    """Hands each torch function that this thread calls inside the block to `called`, whose result its caller gets."""

    def __torch_function__(
        self,
        function: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        return self.called(function, args, kwargs or {})

    def called(self, function: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
        raise NotImplementedError


class _Activations(CallsOfTorch):
    """Holds activations that a model calls as functions between its layers and its logits (RoBERTa's head)."""

    def called(self, function: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
        output = function(*args, **kwargs)
        slope_held = _passed(args[0], output) if function in ACTIVATIONS and args else None
        return output if slope_held is None else slope_held


@dataclass(eq=False)
class Entry:
    """One place where something enters the stream: `value` is added at `tensor`, whose gradient says what it is worth.

    `kind`: "embedding", "heads", "feed-forward" or "bias". Of heads, `value` is what the output projection read, `call`
    the attention call that gave it, and `module` that projection; else `value` has the shape of `tensor`, or is `[m]`.
    """

    name: str
    kind: str
    tensor: Tensor
    value: Tensor
    call: AttentionCall | None = None
    module: nn.Module | None = None
    copy: weakref.ref[Tensor] | None = None
    """What the model went on with in its place, while it is alive."""

    def written(self, index: tuple[Tensor, Tensor], num_texts: int = 1) -> Float[Tensor, "w *rows m"]:
        """What it puts at some places, in float32 at least: of heads a vector each, then their projection's bias.

        `index`: a text and a position for each row. A bias is the same at all.
        """
        width = self.value.shape[-1]
        if self.value.ndim == 1:
            return exact(self.value).expand(*index[0].shape, width)[None]
        value = exact(self.value.reshape(num_texts, -1, width)[index])
        if self.kind != "heads":
            return value[None]
        assert self.call is not None and self.module is not None
        site, rows = self.call.site, index[0].shape
        weight = exact(weight_by_head(self.module, site.num_heads, site.v_dim).detach())
        by_head = (value.reshape(-1, site.num_heads, site.v_dim).transpose(0, 1) @ weight).unflatten(1, rows)
        bias = getattr(self.module, "bias", None)
        return by_head if bias is None else torch.cat([by_head, exact(bias.detach()).expand_as(by_head[:1])])


def row_names(entries: Sequence[Entry]) -> list[tuple[tuple[str, str], ...]]:
    """Name and kind of each row of `Entry.written`, of every entry; a name that comes again gets a number.

    "L0 mlp" is "L0 feed-forward", where a layer has one alone.
    """
    layers = {entry.name: entry.name.partition(" ")[0] for entry in entries if entry.kind == "feed-forward"}
    single = {
        name: f"{layer} feed-forward" for name, layer in layers.items() if list(layers.values()).count(layer) == 1
    }
    used: set[str] = set()
    rows: list[tuple[tuple[str, str], ...]] = []
    for entry in entries:
        names = [(single.get(entry.name, entry.name), entry.kind)]
        if entry.call is not None:
            names = [(str(head), "head") for head in entry.call.site.heads]
            if isinstance(getattr(entry.module, "bias", None), Tensor):
                names.append((f"{entry.name} output bias", "bias"))
        numbered: list[tuple[str, str]] = []
        for name, kind in names:
            # Layers that share their weights are one module: its second call is a row of its own.
            options = (name if number == 1 else f"{name} #{number}" for number in count(1))
            numbered.append((next(option for option in options if option not in used), kind))
            used.add(numbered[-1][0])
        rows.append(tuple(numbered))
    return rows


@dataclass(eq=False)
class HeldNorm:
    """A norm on the way: what it read, and what it gave, as the run goes on with it.

    The graph that comes by it keeps it, so that those before a branch are given up with what the branch read: a third
    of all that a run would hold.
    """

    path: str
    module: nn.Module
    x: Tensor
    y: Tensor
    given: weakref.ref[Tensor] | None = None

    @property
    def result(self) -> Tensor | None:
        """What it gave, in the graph."""
        return None if self.given is None else self.given()

    @cached_property
    def form(self) -> NormForm:
        return norm_form(self.module, self.x, self.y, self.path)


class Product(NamedTuple):
    """A matrix inside a layer that is read: `result = x @ weight.T`, its bias apart."""

    x: Tensor
    result: Tensor
    weight: Float[Tensor, "out in"]


@dataclass(eq=False)
class Read:
    """A layer whose q and k are differentiable: its call, the tensors that its module was given, its products."""

    path: str
    inputs: list[Tensor]
    products: list[Product]
    call: AttentionCall | None = None


@dataclass(eq=False)
class Stream:
    """What `held` saw: entries in the order of the run, and what the unembedding read. `head`: that module.

    `norms`: those held that are in the graph still. `reads`: the layers that were asked for, by name ("L3").
    `rounding`, after the backward pass: of each norm on the way, what its rounding adds to each text's logit.
    """

    entries: list[Entry] = field(default_factory=list)
    head: nn.Module | None = None
    read_by_head: Tensor | None = None
    held_norms: list[weakref.ref[HeldNorm]] = field(default_factory=list)
    reads: dict[str, Read] = field(default_factory=dict)
    rounding: list[Tensor] = field(default_factory=list)
    # What was found out of it once, for all heads of a layer that are asked about.
    known: dict[tuple[object, ...], bool] = field(default_factory=dict)

    @property
    def norms(self) -> list[HeldNorm]:
        return [norm for reference in self.held_norms if (norm := reference()) is not None]


class Enough(Exception):
    """Raised out of a model's run by an observer that has seen all that it needs."""


@contextmanager
def held(
    model: nn.Module,
    spec: ModelSpec,
    num_texts: int,
    *,
    guard: bool | Callable[[str, RawCall], bool] = True,
    reads: Collection[Site] = (),
) -> Generator[Stream]:
    """Run the model once inside the block, with gradients on: the stream's entries are then in its graph.

    - `num_texts`: of the batch.
    - `guard`: as of `tap`.
    - `reads`: layers whose q and k are in the graph as well; the block ends when the last of them has attended.

    Errors: ModelError, as `Branches.of`; as `tap`.
    """
    branches, stream, thread = Branches.of(model, spec), Stream(), threading.get_ident()
    pending: list[AttentionCall] = []
    reading = {site.module.partition("#")[0] for site in reads}
    awaited = {str(site) for site in reads}
    inside_reads = tuple(f"{path}." for path in reading)
    stream.head = getattr(model, "get_output_embeddings", lambda: None)()
    tables = (m for path, m in model.named_modules() if isinstance(m, nn.Embedding) and "pos" not in path.lower())
    words = getattr(model, "get_input_embeddings", lambda: next(tables, None))()

    def here(function: Callable[..., object]) -> Callable[..., object]:
        """Hooks fire in every thread that runs the model: only ours is held."""
        return lambda *args: function(*args) if threading.get_ident() == thread else None

    def off(module: nn.Module, args: object) -> None:
        torch.set_grad_enabled(False)

    def see(call: AttentionCall) -> None:
        pending.append(call)
        name = str(call.site)
        if name in awaited:
            # The module's latest call: layers that share their weights are one module.
            stream.reads[name] = Read(call.site.module.partition("#")[0], inputs[-1], products[-1], call)
            awaited.discard(name)
            if not awaited:
                raise Enough

    inputs: list[list[Tensor]] = []
    products: list[list[Product]] = []

    def enter_read(module: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        inputs.append([x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.requires_grad])
        products.append([])

    def leaf_of(output: Tensor) -> tuple[Tensor, Tensor]:
        # The leaf itself may not be changed in place, which models do when they add to it: they get a copy.
        torch.set_grad_enabled(True)
        leaf = output.detach().requires_grad_()
        return leaf, leaf.clone()

    def project(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        leaf, result = leaf_of(output)
        call = pending.pop()
        stream.entries.append(Entry(str(call.site), "heads", leaf, args[0].detach(), call, module, weakref.ref(result)))
        return result

    def feed_forward(name: str) -> Callable[..., object]:
        def enter(module: nn.Module, args: object, output: Tensor | tuple[Tensor, ...] | list[Tensor]) -> object:
            first, extras = (output[0], output[1:]) if isinstance(output, tuple | list) else (output, None)
            leaf, result = leaf_of(first)
            stream.entries.append(
                Entry(name, "feed-forward", leaf, leaf.detach(), module=module, copy=weakref.ref(result))
            )
            return result if extras is None else type(output)((result, *extras))

        return enter

    def embed(name: str) -> Callable[..., object]:
        def enter(module: nn.Module, args: object, output: object) -> Tensor | None:
            if not torch.is_grad_enabled() or not isinstance(output, Tensor) or not output.is_floating_point():
                return None
            if num_texts > 1 and (output.ndim == 2 or len(output) == 1):  # positions, which all texts share
                output = output.expand(num_texts, -1, -1)
            leaf, result = leaf_of(output)
            stream.entries.append(
                Entry(name, "embedding", leaf, leaf.detach(), module=module, copy=weakref.ref(result))
            )
            return result

        return enter

    def norm(path: str) -> Callable[..., object]:
        def enter(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
            if not torch.is_grad_enabled() or not args or not args[0].requires_grad:
                return None
            norm = HeldNorm(path, module, args[0], output.detach())

            def back(gradient: Tensor) -> Tensor:
                # The form is computed in the backward pass alone, which meets few norms: most lie before a branch.
                stream.rounding.append((gradient * norm.form.rest).reshape(num_texts, -1).sum(-1))
                return norm.form.transposed(gradient)

            result = _Held.apply(norm.x, norm.y, back)
            norm.given = weakref.ref(result)
            stream.held_norms.append(weakref.ref(norm))
            bias = getattr(module, "bias", None)
            if isinstance(bias, Tensor):
                stream.entries.append(Entry(f"{path} bias", "bias", result, bias.detach(), module=module))
            return result

        return enter

    def added_bias(path: str) -> Callable[..., Tensor | None]:
        def enter(module: nn.Module, args: object, output: object) -> None:
            if torch.is_grad_enabled() and isinstance(output, Tensor) and output.requires_grad:
                bias = module.bias.detach()  # type: ignore[union-attr,operator]
                stream.entries.append(Entry(f"{path} bias", "bias", output, bias, module=module))

        return enter

    def product(path: str) -> Callable[..., object]:
        """Of a layer that is read. Its own gradient would multiply all rows where one may be asked for."""

        def enter(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
            weight = getattr(module, "weight", None)
            if not torch.is_grad_enabled() or not args[0].requires_grad:
                return None
            if not isinstance(weight, Tensor) or weight.device != output.device:  # offloaded when it has acted
                return added_bias(path)(module, args, output) if getattr(module, "bias", None) is not None else None
            weight = weight.detach().T if is_transposed(module) else weight.detach()

            def back(gradient: Tensor) -> Tensor:
                flat = gradient.reshape(-1, gradient.shape[-1])
                rows = flat.any(-1).nonzero()[:, 0]
                if len(rows) > len(flat) // 2:
                    return (flat @ weight).view(args[0].shape)
                whole = flat.new_zeros(len(flat), weight.shape[1])
                whole[rows] = flat[rows] @ weight
                return whole.view(args[0].shape)

            result = _Held.apply(args[0], output.detach(), back)
            products[-1].append(Product(args[0], result, weight))
            if isinstance(bias := getattr(module, "bias", None), Tensor):
                stream.entries.append(Entry(f"{path} bias", "bias", result, bias.detach(), module=module))
            return result

        return enter

    def activation(module: nn.Module, args: tuple[Tensor, ...], output: object) -> Tensor | None:
        return _passed(args[0], output) if args else None

    def read_head(module: nn.Module, args: tuple[Tensor, ...], output: object) -> None:
        torch.set_grad_enabled(True)
        stream.read_by_head = args[0]

    with ExitStack() as stack, torch.enable_grad():

        def hook(module: nn.Module, after: Callable[..., object], before: Callable[..., object] | None = None) -> None:
            if before is not None:
                stack.callback(module.register_forward_pre_hook(here(before)).remove)
            stack.callback(module.register_forward_hook(here(after)).remove)

        for path, module in {id(module): (path, module) for path, module in branches.attention.items()}.values():
            if path in reading:
                stack.callback(module.register_forward_pre_hook(here(enter_read), with_kwargs=True).remove)
            else:
                stack.callback(module.register_forward_pre_hook(here(off)).remove)
        for module in branches.outputs.values():
            hook(module, project)
        for module, name in branches.feed_forwards.values():
            hook(module, feed_forward(name), off)
        if stream.head is not None:
            hook(stream.head, read_head, off)
        branched = (*branches.outputs, *branches.feed_forwards)
        for path, module in model.named_modules():
            if any(path == part or path.startswith(f"{part}.") for part in branched) or module is stream.head:
                continue
            is_leaf = not any(True for _ in module.children())
            if is_norm(module):
                hook(module, norm(path))
            elif is_leaf and (isinstance(module, nn.Embedding) or "Embedding" in type(module).__name__):
                place = "position embedding" if "pos" in path.lower() or path.endswith("wpe") else f"{path} embedding"
                is_words = words is not None and getattr(module, "weight", None) is getattr(words, "weight", words)
                hook(module, embed("embedding" if is_words else place))
            elif (type(module) is nn.Linear or is_transposed(module)) and path.startswith(inside_reads):
                hook(module, product(path))
            elif is_leaf and isinstance(getattr(module, "bias", None), Tensor):
                hook(module, added_bias(path))
            elif is_leaf and not list(module.parameters()) and not re.search("Dropout|Identity", type(module).__name__):
                hook(module, activation)
        try:
            # An observer's calls come with each row's lse, a pass over q and k of every layer; an edit's do not.
            observer, edits = (None, [see]) if reads else (see, [])
            with tap(model, observer, edits, guard=guard), _Activations():
                yield stream
        except Enough:
            return
        if awaited:
            raise ModelError(f"{spec.name}: {', '.join(sorted(awaited))} did not attend to this text.")
        if pending:
            raise ModelError(
                f"{spec.name}: {pending[0].site}, module {pending[0].site.module!r}, uses its output projection "
                f"without calling it as a module, so what its heads add to the stream is not seen."
            )


def require_linear(target: Tensor, entries: list[Entry], name: str, what: str = "its logits") -> None:
    """Errors: ModelError where a step between entries and `target` (`what`) is not known to be linear, or mixes two."""
    leaves = {id(entry.tensor) for entry in entries if entry.tensor.is_leaf}
    live: dict[Node, bool] = {}
    todo: list[tuple[Node, bool]] = [] if target.grad_fn is None else [(target.grad_fn, False)]
    while todo:
        node, parents_done = todo.pop()
        parents = [parent for parent, _ in node.next_functions if parent is not None]
        if not parents_done:
            if node in live:
                continue
            live[node] = id(getattr(node, "variable", None)) in leaves
            todo.append((node, True))
            todo += [(parent, False) for parent in parents]
            continue
        alive = [parent for parent in parents if live[parent]]
        live[node] = live[node] or bool(alive)
        if not alive:
            continue
        step = type(node).__name__
        many = re.match(r"(Mul|Div|Mm|Bmm|Addmm|Linear|Matmul|Mv)Backward", step)
        products = node.next_functions[1:] if step.startswith("Addmm") else node.next_functions
        factors = [parent for parent, _ in products if parent is not None and live[parent]]
        divides = step.startswith("Div") and node.next_functions[-1][0] is not None and live[node.next_functions[-1][0]]
        if LINEAR.fullmatch(step) is None or divides or (many and len(factors) > 1):
            raise ModelError(
                f"{name}: between its layers and {what} stands a step that is not linear ({step}), which is not "
                f"known here: what its heads add there cannot be told apart."
            )
