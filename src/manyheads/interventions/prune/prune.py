"""Heads removed for good: a model without their rows and columns, smaller, faster, and checked against the whole one.

`prune_heads` copies a model and cuts heads out of the copy. What is left must compute exactly what the whole model
computes when these heads' outputs are put to zero; that is tried on fresh random inputs each time, and a model that
does not pass is never handed out. Whether heads can go depends on how the model is built, and is said (`legal`).
Source: Michel et al. 2019, section 4. Saving what is left: `manyheads.interventions.save.save`.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from manyheads.errors import ModelError
from manyheads.heads import HeadSet, HeadsLike
from manyheads.interventions.prune.verify import SAME, difference, in_full, outputs_of, random_inputs, require_in_memory
from manyheads.interventions.prune.which_heads import SAME_HEADS, SAME_NUMBER, Kept, require_legal
from manyheads.interventions.save.save import PrunedModel
from manyheads.models import AttentionCall, LoadedModel
from manyheads.models.weights.cut import KeptHeads, cut_model
from manyheads.models.weights.projections import projections_of
from manyheads.spec import ModelSpec, Site

if TYPE_CHECKING:
    pass

__all__ = ["PrunedModel", "prune_heads"]


def prune_heads(lm: Any, heads: HeadsLike, *, empty_layers: bool = False) -> PrunedModel:
    """A copy of a loaded model without these heads; `lm` itself stays as it is, to the bit.

    `heads`: "L3H7, L5H0", {3: [7], 4: [0, 1]}, or anything else that `lm.spec.select` takes. `empty_layers`: a layer
    may lose all of its heads; its attention is then the bias of its output projection, and layers count on without it.

    Where heads share key/value heads, whole groups can go, or the same number out of each group that stays.
    Raises HeadError for heads that there are not, or that cannot go alone (with the nearest plan that can); ModelError
    for a model whose heads do not come apart, or whose copy did not pass the check.
    Cost: a second copy of the model (and of each in float32 for the check, if it is in half precision), three passes
    over two short texts.
    """
    require_in_memory(lm, "prune_heads", "prune")
    asked = lm.spec.select(heads)
    kept = require_legal(lm.spec, asked, shared_biases(lm.model, lm.spec), empty_layers)
    sites = {(site.stack, site.layer): site for site in lm.spec.sites}
    _refuse_shared_modules(lm.spec, [sites[layer] for layer in kept])
    model = copy.deepcopy(lm.model)
    cut_model(model, [KeptHeads(site, *_stays(site, kept.get(layer))) for layer, site in sites.items()])
    error, effect = _verified(lm, model, asked, sites, kept)
    cut_before = isinstance(lm, PrunedModel)
    return PrunedModel(
        model,
        lm.tokenizer,
        lm.name,
        _because(lm, asked),
        lm.processor,
        before=lm.before if cut_before else lm.spec,
        weights_hash_before=lm.weights_hash_before if cut_before else lm.weights_hash,
        error=error,
        effect=effect,
    )


def _stays(site: Site, kept: Kept | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if kept is None:
        return tuple(range(site.num_heads)), tuple(range(site.num_kv_heads))
    return kept.heads, kept.kv_heads


def shared_biases(model: nn.Module, spec: ModelSpec) -> dict[str, str]:
    """Stacks whose layers share one bias of positions (T5 and its kin), and what they must therefore lose alike.

    The first layer of a stack makes the bias, one map a head, and hands it on. Cross-attention's is zeros: there only
    the number of heads counts.
    """
    found = {}
    for stack, sites in spec.stacks.items():
        modules = [model.get_submodule(site.module.split("#")[0]) for site in sites]
        makes = [getattr(module, "has_relative_attention_bias", None) for module in modules]
        if len(sites) > 1 and None not in makes and not all(makes):
            found[stack] = SAME_HEADS if any(makes) else SAME_NUMBER
    return found


def _refuse_shared_modules(spec: ModelSpec, sites: list[Site]) -> None:
    """Layers that are one module called again would all lose a head that one of them loses."""
    again = {site.module.split("#")[0] for site in spec.sites if "#" in site.module}
    for site in sites:
        if site.module.split("#")[0] in again:
            raise ModelError(
                f"{site} is one of several layers of {spec.name} that share the module "
                f"{site.module.split('#')[0]!r}: a head cut out of one would be missing in all of them. Ablate it "
                f"instead, with a plan."
            )


def _verified(
    lm: LoadedModel,
    model: nn.Module,
    asked: HeadSet,
    sites: dict[tuple[str, int], Site],
    kept: dict[tuple[str, int], Kept],
) -> tuple[float, float]:
    """The error against zero ablation, and the ablation's effect. Raises ModelError where the first is not small, or
    where heads that have something to say were silenced and nothing changed."""
    if not asked:
        return 0.0, 0.0
    gone = {sites[layer].module: sorted(set(range(sites[layer].num_heads)) - set(kept[layer].heads)) for layer in kept}
    said: dict[str, bool] = {}

    def silence(call: AttentionCall) -> Tensor | None:
        heads = gone.get(call.site.module)
        if heads is None:
            return None
        out = call.out.clone()
        said[call.site.module] = said.get(call.site.module, False) or bool(out[:, heads].any())
        out[:, heads] = 0
        return out

    whole, small = in_full(lm.model), in_full(model)
    inputs = random_inputs(lm.model)
    try:
        plain = outputs_of(whole, inputs)
    except Exception as error:  # a model that needs other inputs than any that are known here
        raise ModelError(
            f"{lm.name} could not read random inputs, so no cut can be checked: {_brief(error)}"
        ) from error
    try:
        got = outputs_of(small, inputs)
    except Exception as error:  # whatever a model stumbles over that was cut where it should not be
        raise _not_equal(lm, asked, f"does not run: {_brief(error)}") from error
    silenced = outputs_of(whole, inputs, [silence])
    error, effect = difference(got, silenced), difference(silenced, plain)
    if missed := sorted(gone.keys() - said.keys()):
        raise ModelError(f"{lm.name}: {missed[0]} did not attend on random inputs, so the cut could not be checked.")
    if not error <= SAME:
        raise _not_equal(lm, asked, f"differs by {error:.1e} of the largest output")
    if effect == 0 and any(said.values()) and _matters(lm.model, gone, sites):
        raise _not_equal(lm, asked, "was compared with a model in which they were not silenced")
    return error, effect


def _matters(model: nn.Module, gone: dict[str, list[int]], sites: dict[tuple[str, int], Site]) -> bool:
    """Whether the output projection reads any of the removed heads: not so in a model with zeroed ones."""
    by_module = {site.module: site for site in sites.values()}
    return any(bool(projections_of(model, by_module[path]).read_output()[heads].any()) for path, heads in gone.items())


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"


def _not_equal(lm: LoadedModel, asked: HeadSet, how: str) -> ModelError:
    return ModelError(
        f"{lm.name} ({type(lm.model).__name__}) without {asked} {how}, where it should equal the model with these "
        f"heads' outputs at zero (to {SAME:.0e}). It is built in a way that is not known here, and was not pruned. "
        f"Ablate these heads instead, with a plan."
    )


def _because(lm: LoadedModel, asked: HeadSet) -> str:
    if not asked:
        return f"{lm.because}; pruned of nothing"
    return f"{lm.because}; without {asked}, outputs as with these heads at zero, checked on random inputs"
