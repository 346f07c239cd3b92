"""A layer's heads over the stream: the four matrices of each, with the norms around the layer folded in.

A score is `(q x) . (k y)`, an output `(v y) o`, for streams x and y that were divided by their norm's scale. Norms fold
where they are linear: the gain of the norm before a layer goes into what reads through it, with a LayerNorm's
centring, the gain of a norm after a branch (Gemma 2) into what writes, gains of per-head query and key norms into
those. What does not fold: every norm's scale, which differs from token to token; biases; rotary positions.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from manyheads.circuits.residual import NormForm, norm_form
from manyheads.errors import ModelError
from manyheads.models import LoadedModel, probe_inputs, run
from manyheads.models.weights import Projections, holders_of, is_norm, output_projection, weight_by_head
from manyheads.spec import Site


class HeadMatrices(NamedTuple):
    """What each head of a layer reads of the stream by its queries, keys and values, and what it writes."""

    q: Float[Tensor, "h d m"]
    k: Float[Tensor, "h d m"]
    v: Float[Tensor, "h f m"]
    o: Float[Tensor, "h f m"]


def head_matrices(
    lm: LoadedModel, site: Site, fold: NormFold, kind: torch.dtype, purpose: str, *, passed: bool = True
) -> HeadMatrices:
    """A layer's matrices, key/value heads repeated for the heads of their group, in this dtype.

    `purpose`: what cannot be done without them, for the error. `passed`: whether the norm before the layer is folded in
    although the stream itself passes it (post-norm models): the stream is then what comes before that norm.

    Errors: ModelError where q, k, v or the output projection are not found by head (latent attention).
    """
    path = site.module.partition("#")[0]
    module = lm.model.get_submodule(path)
    holders = holders_of(module, site)
    output = output_projection(lm.model, path, site.num_heads * site.v_dim)
    if not holders or output is None:
        raise ModelError(
            f"{lm.spec.name}: q, k, v and the output projection of {site}, module {path!r} ({type(module).__name__}), "
            f"were not found as matrices by head, so {purpose}."
        )
    projections = Projections(site, module, holders, *output, {})
    weight = {part: projections.read(part)[0].to(kind) for part in "qkv"}
    for part, gain in fold.gains.items():
        weight[part] = weight[part] * gain.to(kind)[..., None]
    for part, form in fold.reads.items():
        if form is not None and (passed or not fold.passes):
            weight[part] = weight[part] * form.gain.to(kind)
            if form.centres:
                weight[part] = weight[part] - weight[part].mean(-1, keepdim=True)
    written = weight_by_head(projections.output, site.num_heads, site.v_dim).detach().to(kind)
    if fold.writes is not None:
        if fold.writes.centres:
            written = written - written.mean(-1, keepdim=True)
        written = written * fold.writes.gain.to(kind)
    group = torch.arange(site.num_heads, device=written.device) // (site.num_heads // site.num_kv_heads)
    return HeadMatrices(weight["q"], weight["k"][group], weight["v"][group], written)


@dataclass(eq=False)
class NormFold:
    """Norms around a layer: before what reads by q, k and v, after what writes; gains by dimension of q and k.

    `passes`: whether the norm before the layer is one that the stream itself passes, in another block.
    """

    reads: dict[str, NormForm | None]
    writes: NormForm | None
    gains: dict[str, Tensor]
    passes: bool


def folds_of(lm: LoadedModel) -> list[NormFold]:
    """The norms around each layer, told from one small forward pass: whose output is what the layer reads."""
    model, spec = lm.model, lm.spec
    norms: list[tuple[str, nn.Module, Tensor, Tensor]] = []
    tensors: dict[tuple[str, str], Tensor] = {}  # path, and which of q, k, v (or "all", "out"): the tensor

    def keep_norm(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: object) -> None:
            if args and isinstance(output, Tensor) and isinstance(args[0], Tensor):
                norms.append((path, module, args[0].detach(), output.detach()))

        return hook

    def keep_input(path: str, parts: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            layer_input = args[0] if args else kwargs.get("hidden_states")
            if isinstance(layer_input, Tensor):
                tensors.setdefault((path, parts), layer_input.detach())

        return hook

    with ExitStack() as stack:
        for path, module in model.named_modules():
            if is_norm(module):
                stack.callback(module.register_forward_hook(keep_norm(path)).remove)
        for site in spec.sites:
            path = site.module.partition("#")[0]
            module = model.get_submodule(path)
            hook = module.register_forward_pre_hook(keep_input(path, "all"), with_kwargs=True)
            stack.callback(hook.remove)
            for holder in holders_of(module, site):
                hook = holder.module.register_forward_pre_hook(keep_input(path, holder.parts), with_kwargs=True)
                stack.callback(hook.remove)
            output = output_projection(model, path, site.num_heads * site.v_dim)
            if output is not None:

                def keep_output(module: nn.Module, args: object, result: Tensor, path: str = path) -> None:
                    tensors.setdefault((path, "out"), result.detach())

                stack.callback(output[1].register_forward_hook(keep_output).remove)
        with torch.no_grad():
            run(model, lm.name, probe_inputs(model))

    def same(a: Tensor, b: Tensor) -> bool:
        return a.shape == b.shape and torch.equal(a, b)

    folds: list[NormFold] = []
    for site in spec.sites:
        path = site.module.partition("#")[0]
        block = path.rpartition(".")[0]
        reads: dict[str, NormForm | None] = {}
        passes = False
        names = path.split(".")
        number = next((place for place, name in enumerate(names) if name.isdigit()), len(names) - 1)
        numbered = ".".join(names[: number + 1])  # "model.layers.3" of "model.layers.3.self_attn"
        for part in "qkv":
            layer_input = next(
                (x for (of_path, parts), x in tensors.items() if of_path == path and part in parts), None
            )
            layer_input = tensors.get((path, "all")) if layer_input is None else layer_input
            before = [entry for entry in norms if layer_input is not None and same(entry[3], layer_input)]
            reads[part] = norm_form(before[0][1], before[0][2], before[0][3], before[0][0]) if before else None
            passes |= bool(before) and not before[0][0].startswith(numbered)
        written = tensors.get((path, "out"))
        after = [entry for entry in norms if written is not None and same(entry[2], written)]
        writes = norm_form(after[0][1], after[0][2], after[0][3], after[0][0]) if after else None
        gains: dict[str, Tensor] = {}
        for name, module, x, y in norms:
            inside = name.removeprefix(f"{path}.")
            weight = getattr(module, "weight", None)
            if inside == name or weight is None:
                continue
            for part, count in (("q", site.num_heads), ("k", site.num_kv_heads)):
                if inside.startswith(part) or inside.endswith(f"_{part}"):
                    # For each dimension; of each head, where the norm has a row for each (Cohere).
                    shape = (count, site.qk_dim)
                    gain = weight.detach() if weight.shape == shape else norm_form(module, x, y, name).gain
                    gains[part] = gain.view(shape) if gain.numel() == count * site.qk_dim else gain
        folds.append(NormFold(reads, writes, gains, passes and bool(block)))
    return folds
