"""Heads removed for good: a model without their rows and columns, smaller, faster, and checked against the original.

`prune_heads` copies a model and cuts heads out of the copy. The copy must compute exactly what the original computes
when these heads' outputs are set to zero; that is tried on fresh random inputs each time, and a model that does not
pass is never returned. Which heads can go depends on how the model is built (`which_heads`).
Source: Michel et al. 2019, section 4. Saving the pruned model: `manyheads.interventions.save.save`.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn

from manyheads.errors import ModelError
from manyheads.heads import HeadSet, HeadsLike
from manyheads.interventions.prune.verify import SAME, difference, outputs_of, random_inputs, require_in_memory
from manyheads.interventions.prune.which_heads import SAME_HEADS, SAME_NUMBER, Kept, require_legal
from manyheads.interventions.save.save import PrunedModel
from manyheads.models import AttentionCall, LoadedModel
from manyheads.models.weights.cut import KeptHeads, cut_model
from manyheads.models.weights.projections import projections_of
from manyheads.spec import ModelSpec, Site


def prune_heads(lm: Any, heads: HeadsLike, *, empty_layers: bool = False) -> PrunedModel:
    """A copy of a loaded model without these heads; `lm` itself stays as it is, to the bit.

    `heads`: "L3H7, L5H0", {3: [7], 4: [0, 1]}, or anything else that `lm.spec.select` takes. `empty_layers`: a layer
    may lose all of its heads; its attention is then the bias of its output projection, and its number stays unused.

    Where heads share key/value heads, whole groups can go, or the same number out of each group that stays.
    Raises HeadError for heads that the model lacks, or that cannot go alone (with the nearest plan that can);
    ModelError for a model whose heads cannot be separated, or whose copy did not pass the check.
    Cost: a second copy of the model (and its largest weight in float32 for the check, if it is in half precision),
    three passes over two short texts.
    """
    require_in_memory(lm, "prune_heads", "prune")
    removed = lm.spec.select(heads)
    remaining = require_legal(lm.spec, removed, shared_biases(lm.model, lm.spec), empty_layers)
    sites = {(site.stack, site.layer): site for site in lm.spec.sites}
    shared_modules = {site.module.split("#")[0] for site in lm.spec.sites if "#" in site.module}
    for layer in remaining:  # layers that are one module called again would all lose a head that one of them loses
        if (module := sites[layer].module.split("#")[0]) in shared_modules:
            raise ModelError(
                f"{sites[layer]} is one of several layers of {lm.spec.name} that share the module "
                f"{module!r}: a head cut out of one would be missing in all of them. Ablate it "
                f"instead, with a plan."
            )
    cuts: list[KeptHeads] = []
    for layer, site in sites.items():
        stays = remaining.get(layer, Kept(tuple(range(site.num_heads)), tuple(range(site.num_kv_heads))))
        cuts.append(KeptHeads(site, stays.heads, stays.kv_heads))
    model = copy.deepcopy(lm.model)
    cut_model(model, cuts)
    # The check runs on every call, on fresh inputs: attribute names may have misled the cut, outputs cannot.
    error, effect = _verified(lm, model, removed, sites, remaining)
    because = f"{lm.because}; without {removed}, outputs as with these heads at zero, checked on random inputs"
    cut_before = isinstance(lm, PrunedModel)
    return PrunedModel(
        model,
        lm.tokenizer,
        lm.name,
        because if removed else f"{lm.because}; pruned of nothing",
        lm.processor,
        before=lm.before if cut_before else lm.spec,
        weights_hash_before=lm.weights_hash_before if cut_before else lm.weights_hash,
        error=error,
        effect=effect,
    )


def shared_biases(model: nn.Module, spec: ModelSpec) -> dict[str, str]:
    """Stacks whose layers share one bias of positions (T5 and its kin) -> what they must therefore lose alike.

    The first layer of a stack computes the bias, one map per head, and passes it on. Cross-attention's is zeros: there
    only the number of heads counts.
    """
    rules: dict[str, str] = {}
    for stack, sites in spec.stacks.items():
        modules = [model.get_submodule(site.module.split("#")[0]) for site in sites]
        makes = [getattr(module, "has_relative_attention_bias", None) for module in modules]
        if len(sites) > 1 and None not in makes and not all(makes):
            rules[stack] = SAME_HEADS if any(makes) else SAME_NUMBER
    return rules


def _verified(
    lm: LoadedModel,
    model: nn.Module,
    removed: HeadSet,
    sites: dict[tuple[str, int], Site],
    remaining: dict[tuple[str, int], Kept],
) -> tuple[float, float]:
    """The error of the cut model against zero ablation, and the ablation's own effect.

    Raises ModelError where the error is not small, or where heads with nonzero outputs were silenced and nothing
    changed: then the comparison proves nothing.
    """
    if not removed:
        return 0.0, 0.0
    gone: dict[str, list[int]] = {}
    for layer, stays in remaining.items():
        site = sites[layer]
        gone[site.module] = sorted(set(range(site.num_heads)) - set(stays.heads))
    nonzero: dict[str, bool] = {}  # module -> whether its removed heads put out anything

    def silence(call: AttentionCall) -> Tensor | None:
        heads = gone.get(call.site.module)
        if heads is None:
            return None
        out = call.out.clone()
        nonzero[call.site.module] = nonzero.get(call.site.module, False) or bool(out[:, heads].any())
        out[:, heads] = 0
        return out

    inputs = random_inputs(lm.model)
    try:
        plain = outputs_of(lm.model, inputs, in_full=True)
    except Exception as error:  # a model that needs other inputs than those that can be drawn
        raise ModelError(
            f"{lm.name} could not read random inputs, so no cut can be checked: {_brief(error)}"
        ) from error
    try:
        outputs = outputs_of(model, inputs, in_full=True)
    except Exception as error:  # any kind: the model was cut where it should not be
        raise _not_equal(lm, removed, f"does not run: {_brief(error)}") from error
    # The original under the tap is the reference: an independent way to the same numbers as the cut weights.
    silenced = outputs_of(lm.model, inputs, [silence], in_full=True)
    error, effect = difference(outputs, silenced), difference(silenced, plain)
    if missed := sorted(gone.keys() - nonzero.keys()):
        raise ModelError(f"{lm.name}: {missed[0]} did not attend on random inputs, so the cut could not be checked.")
    if not error <= SAME:  # NaN is no small error
        raise _not_equal(lm, removed, f"differs by {error:.1e} of the largest output")
    if effect == 0 and any(nonzero.values()):
        # Legitimate only where the output projection reads none of the removed heads: its weights for them are zero.
        by_module = {site.module: site for site in sites.values()}
        weights = [projections_of(lm.model, by_module[path]).read_output()[heads] for path, heads in gone.items()]
        if any(bool(weight.any()) for weight in weights):
            raise _not_equal(lm, removed, "was compared with a model in which they were not silenced")
    return error, effect


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"


def _not_equal(lm: LoadedModel, removed: HeadSet, fault: str) -> ModelError:
    return ModelError(
        f"{lm.name} ({type(lm.model).__name__}) without {removed} {fault}, where it should equal the model with these "
        f"heads' outputs at zero (to {SAME:.0e}). It is built in a way that is not known here, and was not pruned. "
        f"Ablate these heads instead, with a plan."
    )
