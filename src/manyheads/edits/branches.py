"""Where a model branches off its residual stream: blocks, output projections, feed-forwards; and edits of these places.

A place is the stream as a layer reads it, or what its feed-forward gives: "L3 stream", "L3 feed-forward". Neither is
seen by a tap, which knows attention alone; both are the input or the output of a module, so a hook of torch's own sees
and replaces them. Which module that is comes from the model's structure: a numbered block, and in it the part with
matrices that does not attend and whose last one is as wide as the stream. A block where that is none, or several, is
refused by name.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from manyheads.errors import HeadError, ModelError, PlanError
from manyheads.heads import Head, Shape, layer_name, parse_heads
from manyheads.models.weights import input_width, is_norm, is_transposed, output_projection
from manyheads.plan import Place
from manyheads.spec import ModelSpec

Layer = tuple[str, int]  # (stack, layer)


@dataclass(frozen=True, eq=False)
class Branches:
    """Where a model branches off its stream: output projections and feed-forwards, path to module, and the blocks.

    `layers`: each block's name, "L3" or "encoder:L0"; its path where its number is not known.
    """

    attention: dict[str, nn.Module]
    outputs: dict[str, nn.Module]
    feed_forwards: dict[str, tuple[nn.Module, str]]  # with the name of their row
    blocks: tuple[str, ...]
    layers: Mapping[str, str]

    @classmethod
    def of(cls, model: nn.Module, spec: ModelSpec) -> Branches:
        """Errors: ModelError where a layer has no output projection, or stands in no numbered block."""
        attention: dict[str, nn.Module] = {}
        outputs: dict[str, nn.Module] = {}
        first: dict[str, str] = {}  # block -> its first site
        for site in spec.sites:
            path = site.module.partition("#")[0]
            match = re.match(r"(.*?\.\d+)(\.|$)", f".{path}")
            if match is None:
                raise ModelError(f"{spec.name}: {path} is in no numbered block, so its residual stream is not known.")
            output = output_projection(model, path, site.num_heads * site.v_dim)
            if output is None:
                raise ModelError(
                    f"{spec.name}: {site}, module {path!r}, has no output projection with "
                    f"{site.num_heads * site.v_dim} inputs in it or beside it, so what its heads add is not known."
                )
            attention[path], outputs[output[0]] = model.get_submodule(path), output[1]
            first.setdefault(match[1].removeprefix("."), str(site))
        owners = {path.rpartition(".")[0] for path in first}
        blocks = tuple(
            path for path, _ in model.named_modules() if path.rpartition(".")[0] in owners and path[-1:].isdigit()
        )
        branches: dict[str, tuple[nn.Module, str]] = {}
        taken = (*attention, *outputs)
        layers = {block: first.get(block) or _silent_name(block, first) for block in blocks}
        for block, label in layers.items():
            parts = [] if block in attention else list(_feed_forwards(model.get_submodule(block), block, taken))
            branches |= {path: (module, f"{label} {path.removeprefix(block + '.')}") for path, module in parts}
        return cls(attention, outputs, branches, blocks, layers)


def _silent_name(block: str, first: Mapping[str, str]) -> str:
    """The name of a block that does not attend: "L2" where those beside it are "L1" and "L3", else its path."""
    owner, _, number = block.rpartition(".")
    beside = [(path.rpartition(".")[2], site) for path, site in first.items() if path.rpartition(".")[0] == owner]
    stacks = {site.removesuffix(f"L{own}") for own, site in beside}
    stack = stacks.pop() if len(stacks) == 1 else block
    return f"{stack}L{number}" if not stack or stack.endswith(":") else block


def _feed_forwards(module: nn.Module, path: str, attention: tuple[str, ...]) -> Iterator[tuple[str, nn.Module]]:
    """The largest parts of a block that have matrices and neither attend nor hold a norm of the stream."""
    for name, part in module.named_children():
        inside = f"{path}.{name}"
        if inside in attention or is_norm(part):
            continue
        if any(attention_path.startswith(f"{inside}.") for attention_path in attention) or any(
            is_norm(m) for m in part.modules()
        ):
            yield from _feed_forwards(part, inside, attention)
        elif any(weight.ndim >= 2 for weight in part.parameters()):
            yield inside, part


@dataclass(frozen=True, eq=False)
class Places:
    """The modules at which the stream can be read and replaced, by layer: its block, and the place's own module.

    For "stream" they are one, whose input is meant; for "feed-forward" the output is.
    """

    place: Place
    modules: Mapping[Layer, tuple[nn.Module, nn.Module]]
    reasons: Mapping[Layer, str]
    model: str

    @classmethod
    def of(cls, model: nn.Module, spec: ModelSpec, place: Place) -> Places:
        """Errors: ModelError as `Branches.of`; PlanError where one module is several layers."""
        branches = Branches.of(model, spec)
        if shared := [site for site in spec.sites if "#" in site.module]:
            raise PlanError(
                f"{spec.name}: {shared[0]} shares its module with another layer, so the {place} of one of them cannot "
                f"be edited."
            )
        width = output_width(next(iter(branches.outputs.values())))  # of the stream, which all of them write
        modules: dict[Layer, tuple[nn.Module, nn.Module]] = {}
        reasons: dict[Layer, str] = {}
        for path, name in branches.layers.items():
            with suppress(HeadError):  # of a block whose number is not known
                head = Head.parse(f"{name}H0")
                layer, block = (head.stack, head.layer), model.get_submodule(path)
                if place == "stream":
                    modules[layer] = block, block
                    continue
                parts = {x: part for x, (part, _) in branches.feed_forwards.items() if x.startswith(f"{path}.")}
                writing = {x: part for x, part in parts.items() if _writes(part, width)}
                chosen = parts if len(parts) == 1 else writing
                if len(chosen) == 1:
                    modules[layer] = block, next(iter(chosen.values()))
                else:
                    among = ", ".join(parts) or "none"
                    reasons[layer] = f"which of its modules is the feed-forward is not known (candidates: {among})"
        return cls(place, modules, reasons, spec.name)

    @property
    def shape(self) -> Shape:
        """The layers as a model of one head each, which the grammar of heads can name."""
        known = {*self.modules, *self.reasons}
        lengths = {stack: 1 + max(layer for own, layer in known if own == stack) for stack, _ in known}
        return {stack: [int((stack, layer) in known) for layer in range(count)] for stack, count in lengths.items()}

    def chosen(self, layers: str) -> list[Layer]:
        """The layers that a text of the grammar of heads names. Errors: HeadError, PlanError."""
        named = list(parse_heads(layers, self.shape).by_layer())
        for layer in named:
            if layer in self.reasons:
                raise PlanError(f"{self.model}: {layer_name(*layer)} {self.place}: {self.reasons[layer]}.")
        return named

    def hooked(
        self, layers: list[Layer], edit: Callable[[Layer, Float[Tensor, "b q m"]], Tensor | None]
    ) -> list[RemovableHandle]:
        """Hooks, for this thread, that call `edit` with the tensor at a layer's place, and put what it returns there.

        `edit` returns None where it leaves the tensor as it is. Whoever asks removes the hooks.
        """
        thread, rows = threading.get_ident(), dict[Layer, torch.Size]()

        def entering(layer: Layer) -> Callable[..., object]:
            def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
                if threading.get_ident() != thread:
                    return None
                states: Any = args[0] if args else kwargs.get("hidden_states")
                if not isinstance(states, Tensor):
                    raise PlanError(f"{layer_name(*layer)} {self.place}: its block was called without hidden states.")
                rows[layer] = states.shape
                if self.place != "stream" or (new := edit(layer, states)) is None:
                    return None
                return ((new, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": new})

            return enter

        def leaving(layer: Layer) -> Callable[..., object]:
            def leave(module: nn.Module, args: object, output: Any) -> object:
                if threading.get_ident() != thread:
                    return None
                first: Tensor = output[0] if isinstance(output, tuple | list) else output
                # Some models (OPT) lay the rows of all texts one after another.
                is_flat = first.ndim == 2 and len(rows[layer]) == 3
                new = edit(layer, first.view(*rows[layer][:2], -1) if is_flat else first)
                if new is None:
                    return None
                new = new.reshape(first.shape)
                return type(output)((new, *output[1:])) if isinstance(output, tuple | list) else new

            return leave

        handles: list[RemovableHandle] = []
        for layer in layers:
            block, module = self.modules[layer]
            handles.append(block.register_forward_pre_hook(entering(layer), with_kwargs=True))
            if self.place == "feed-forward":
                handles.append(module.register_forward_hook(leaving(layer)))
        return handles


def _writes(part: nn.Module, width: int | None) -> bool:
    """Whether the last matrix of a part is as wide as the stream: it is written there, and read by no other part."""
    widths = [size for module in part.modules() if (size := output_width(module)) is not None]
    return not widths or widths[-1] == width


def output_width(module: nn.Module) -> int | None:
    """The number of outputs of a linear map; None for a module that is not a linear map."""
    if input_width(module) is None:
        return None
    weight: Any = module.weight
    return int(weight.shape[1] if is_transposed(module) else weight.shape[0])
