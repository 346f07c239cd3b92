"""A model with heads cut out, in place; a layer left without any; and the way back to the shape that it was built in.

A pruned model is fully described by the heads that stay of each site, by number. `cut_model` prunes a model in memory,
and makes room for the weights of one that was saved. The model remembers what was kept, counted in the heads of its
architecture, so that it can be cut again, saved, and filled up with zeros (`uncut`).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from manyheads import private_names
from manyheads.errors import ModelError
from manyheads.heads import Head
from manyheads.models.weights.projections import is_transposed, out_rows, projections_of
from manyheads.spec import CROSS, Site

if TYPE_CHECKING:
    from transformers import PreTrainedModel

REMEMBERED = "kept_heads"  # the attribute of a cut model


@dataclass(frozen=True)
class KeptHeads:
    """What stays of one site. `site` is as the architecture has it, whole; heads by their numbers in it."""

    site: Site
    heads: tuple[int, ...]
    kv_heads: tuple[int, ...]

    @property
    def is_whole(self) -> bool:
        """Whether nothing was removed, and nothing moved."""
        return self.heads == tuple(range(self.site.num_heads)) and len(self.kv_heads) == self.site.num_kv_heads

    @property
    def removed(self) -> tuple[Head, ...]:
        return tuple(head for head in self.site.heads if head.index not in self.heads)


class EmptyAttention(nn.Module):
    """Stands where a layer lost all its heads: the output projection of nothing, which is its bias.

    The projection keeps its name, so that weights keep theirs. A cache still hears of each token, by one zero, since
    models read off their first layer how far a text has come.
    """

    def __init__(self, attention: nn.Module, site: Site, name: str | None, output: nn.Module) -> None:
        super().__init__()
        self.name, self.layer_idx, self.crosses = name, getattr(attention, "layer_idx", None), site.stack == CROSS
        if name is not None:
            self.add_module(name, output)

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
        """`(output, None)`: as attention modules return, for any input of theirs."""
        hidden = args[0] if args else kwargs["hidden_states"]
        if not self.crosses:
            for value in (*args[1:], *kwargs.values()):
                if hasattr(value, "get_seq_length") and hasattr(value, "update"):
                    cache = getattr(value, "self_attention_cache", value)
                    nothing = hidden.new_zeros(hidden.shape[0], 1, hidden.shape[1], 1)
                    cache.update(nothing, nothing, self.layer_idx)
        if self.name is None:  # the projection stands beside, and gets no numbers
            return hidden.new_zeros(*hidden.shape[:-1], 0), None
        output = self.get_submodule(self.name)
        out = hidden.new_zeros(*hidden.shape[:-1], out_rows(output) or 0)
        return (out if output.bias is None else out + output.bias), None  # type: ignore[operator]


def kept_in(model: nn.Module) -> tuple[KeptHeads, ...]:
    """What stays of each site of a cut model, also of those that lost nothing; empty for a model never cut."""
    return getattr(model, REMEMBERED, ())


def cut_model(model: nn.Module, cuts: Sequence[KeptHeads]) -> None:
    """Cut `model` in place to the heads that stay. Sites are the model's own, as it is now; several cuts add up.

    Name all sites of the model, those too that stay whole: so their numbers in the architecture are remembered.
    Raises ModelError, perhaps after some sites were cut, where a site's heads cannot be (`projections_of`).
    """
    remembered = {before.site.module: before for before in kept_in(model)}
    for cut in cuts:
        if not cut.is_whole:
            projections = projections_of(model, cut.site)
            if cut.heads:
                projections.select(cut.heads, cut.kv_heads)
            else:  # an `EmptyAttention` takes the site's place, over the output projection's bias
                output, inside = projections.output_and_name()
                parent, _, name = cut.site.module.rpartition(".")
                if not name:
                    raise ModelError(f"{cut.site} is the whole model: without heads nothing would be left of it.")
                if inside is not None and "." in inside:
                    raise ModelError(
                        f"{cut.site}: its output projection, {inside!r}, lies too deep in it to be left alone there."
                    )
                old = output.weight
                assert isinstance(old, nn.Parameter)
                shape = (0, old.shape[1]) if is_transposed(output) else (old.shape[0], 0)
                output.weight = nn.Parameter(old.new_empty(shape), old.requires_grad)
                for attribute in ("in_features", "nx"):
                    if hasattr(output, attribute):
                        object.__setattr__(output, attribute, 0)
                empty = EmptyAttention(model.get_submodule(cut.site.module), cut.site, inside, output)
                model.get_submodule(parent).add_module(name, empty.eval())
        before = remembered.get(cut.site.module)
        if before is not None:  # numbers of the cut model become numbers of its architecture
            heads, kv_heads = (
                tuple(old[index] for index in new)
                for old, new in ((before.heads, cut.heads), (before.kv_heads, cut.kv_heads))
            )
            cut = KeptHeads(before.site, heads, kv_heads)
        remembered[cut.site.module] = cut
    object.__setattr__(model, REMEMBERED, tuple(remembered.values()))


def built_anew(model: nn.Module) -> PreTrainedModel:
    """The architecture that a cut model was built as, whole, in its dtype, on the CPU, weights not set at all.

    Raises ModelError for a model that transformers did not make: there is no telling how to build it.
    """
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        raise ModelError(
            f"{type(model).__name__} is not a transformers model, so it cannot be built again "
            f"from its config. Build "
            f"it yourself, and load its state_dict."
        )
    config = copy.deepcopy(model.config)
    # Building draws random numbers even where none is used: the caller's own sequence stays as it was.
    with torch.random.fork_rng(devices=[]), private_names.no_init_weights():
        full_model = private_names.from_config(type(model), config, dtype=model.dtype)
    full_model.tie_weights()  # no_init_weights leaves that out
    if hasattr(model, "generation_config"):
        full_model.generation_config = copy.deepcopy(model.generation_config)
    return full_model.eval()


def uncut(model: nn.Module) -> Any:
    """The same model in the shape that it was built in: what was cut out is zeros, so its outputs are the same.

    The removed heads' columns of the output projection are zero, and so is all else that was theirs. A new model, on
    the CPU. Cost: the whole architecture's memory.
    """
    full_model = built_anew(model)
    small, full = model.state_dict(), full_model.state_dict(keep_vars=True)
    cuts = {
        cut.path: cut
        for cut_site in kept_in(model)
        if not cut_site.is_whole
        for cut in projections_of(full_model, cut_site.site).cuts(cut_site.heads, cut_site.kv_heads)
    }
    emptied = tuple(f"{cut_site.site.module}." for cut_site in kept_in(model) if not cut_site.heads)
    with torch.no_grad():
        for path, target in full.items():
            if path not in cuts and (path in small or not path.startswith(emptied)):
                target.copy_(small[path])
                continue
            # Zeroed whole, then filled: what the cut left out stays zero, so a head without weights gives nothing.
            target.zero_()
            if path in small:  # an empty layer has none of q, k and v, nor their norms
                cut = cuts[path]
                target.index_copy_(cut.axis, cut.index, small[path].to(target))
    return full_model
