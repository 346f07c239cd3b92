"""Heads removed for good: a model without their rows and columns, smaller, faster, and checked against the original.

`prune_heads` copies a model and cuts heads out of the copy. The copy must compute exactly what the original computes
when these heads' outputs are set to zero; that is tried on fresh random inputs each time, and a model that does not
pass is never returned. Source: Michel et al. 2019, section 4. Saving the pruned model:
`manyheads.interventions.save.save`.

Which heads can go, and the nearest set that can, depends on how the model is built (`require_legal`). Where query heads
share key/value heads (GQA), each key/value head must go on serving equally many: whole groups go, or the same number
out of each group that stays. With one key/value head (MQA) any query heads may go. Where the layers of a stack share
one bias of positions (T5), that bias has as many heads as every layer: all layers lose the same heads (or, where the
bias is nothing but zeros, equally many).

The nearest plan changes as few heads as possible; of equal changes, the one that keeps the fewest requested heads wins.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from torch import Tensor, nn

from manyheads.errors import HeadError, ModelError
from manyheads.heads import Head, HeadSet, HeadsLike
from manyheads.interventions.save.save import Costs, PrunedModel, cache_bytes_a_token
from manyheads.interventions.verify import SAME, difference, outputs_of, random_inputs, require_in_memory
from manyheads.models import AttentionCall, LoadedModel
from manyheads.models.taps import Edit
from manyheads.models.weights import KeptHeads, cut_model, projections_of
from manyheads.spec import ModelSpec, Site


def prune_heads(lm: LoadedModel, heads: HeadsLike, *, empty_layers: bool = False) -> PrunedModel:
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
    if not removed:
        raise HeadError(f"{heads=} names no heads: to remove none leaves a model as it was. Name one or more.")
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
        because,
        lm.processor,
        lm.stored,
        before=lm.before if cut_before else lm.spec,
        weights_hash_before=lm.weights_hash_before if cut_before else lm.weights_hash,
        error=error,
        effect=effect,
    )


def costs_without(lm: LoadedModel, heads: HeadsLike) -> Costs:
    """What a model costs now, and would without these heads: parameters, and bytes of cache a token.

    Where heads share a key/value head, only a whole group frees cache. Cost: none, it is counted from shapes.
    Errors: HeadError for heads that cannot go; ModelError for a model whose heads cannot be separated.
    """
    remaining = require_legal(lm.spec, lm.spec.select(heads), shared_biases(lm.model, lm.spec), True)
    parameters, freed, sites = dict(lm.model.named_parameters()), 0, list[Site]()
    for site in lm.spec.sites:
        stays = remaining.get(_layer(site))
        if stays is None:
            sites.append(site)
            continue
        for cut in projections_of(lm.model, site).cuts(stays.heads, stays.kv_heads):
            if (weight := parameters.get(cut.path)) is not None:
                size = weight.shape[cut.axis]
                freed += weight.numel() // size * (size - len(cut.index))
        if stays.heads:  # else the layer attends no longer
            sites.append(replace(site, num_heads=len(stays.heads), num_kv_heads=len(stays.kv_heads)))
    cache_bytes = (cache_bytes_a_token(lm, lm.spec.sites), cache_bytes_a_token(lm, sites))
    return Costs((lm.spec.num_parameters, lm.spec.num_parameters - freed), cache_bytes)


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
    # NaN is no small error. The order of sums may make one that many cut layers enlarge: in float64 that one is gone.
    if not error <= SAME and not _error_in_float64(model, lm.model, inputs, silence) <= SAME:
        raise _not_equal(lm, removed, f"differs by {error:.1e} of the largest output")
    if effect == 0 and any(nonzero.values()):
        # Legitimate only where the output projection reads none of the removed heads: its weights for them are zero.
        by_module = {site.module: site for site in sites.values()}
        weights = [projections_of(lm.model, by_module[path]).read_output()[heads] for path, heads in gone.items()]
        if any(bool(weight.any()) for weight in weights):
            raise _not_equal(lm, removed, "was compared with a model in which they were not silenced")
    return error, effect


def _error_in_float64(model: nn.Module, whole: nn.Module, inputs: dict[str, Tensor], silence: Edit) -> float:
    """The error of a cut model against the whole one with heads silenced, of copies in float64; infinite where they do
    not run. Cost: both models in float64 in memory, and a pass of each."""
    doubled = {name: x.double() if x.is_floating_point() else x for name, x in inputs.items()}
    try:
        outputs = outputs_of(copy.deepcopy(model).double(), doubled)
        silenced = outputs_of(copy.deepcopy(whole).double(), doubled, [silence])
    except Exception:  # any kind: the refusal that follows says what was found before
        return math.inf
    return difference(outputs, silenced)


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"


def _not_equal(lm: LoadedModel, removed: HeadSet, fault: str) -> ModelError:
    return ModelError(
        f"{lm.name} ({type(lm.model).__name__}) without {removed} {fault}, where it should equal the model with these "
        f"heads' outputs at zero (to {SAME:.0e}). It is built in a way that is not known here, and was not pruned. "
        f"Ablate these heads instead, with a plan."
    )


SAME_HEADS, SAME_NUMBER = "the same heads", "equally many heads"
"""What the layers of a stack must lose, where they share a bias."""

EACH_LAYER, EACH_GROUP, ANYWHERE = "each layer", "each group", "anywhere"
"""Ways in which heads that share key/value heads can go: as many groups of each layer, as many heads of each group, or
whole groups wherever they are. The first two leave all layers alike."""

Layer = tuple[str, int]  # stack, layer


@dataclass(frozen=True)
class Kept:
    """The query heads and key/value heads of a site that stay, by their old numbers. Both empty for an empty layer."""

    heads: tuple[int, ...]
    kv_heads: tuple[int, ...]


def kept_of(site: Site, removed: Iterable[int]) -> Kept | None:
    """What stays without the removed query heads; None where that is not legal."""
    gone, size = set(removed), site.num_heads // site.num_kv_heads
    groups = [
        [head for head in range(group * size, (group + 1) * size) if head not in gone]
        for group in range(site.num_kv_heads)
    ]
    remaining = [(group, heads) for group, heads in enumerate(groups) if heads]
    if len({len(heads) for _, heads in remaining}) > 1:
        return None
    return Kept(tuple(head for _, heads in remaining for head in heads), tuple(group for group, _ in remaining))


def nearest_in_layer(
    num_heads: int, num_kv_heads: int, removed: Iterable[int], *, empty: bool = False, at_least_one: bool = False
) -> set[int]:
    """The legal set of removed heads with the fewest changes. `empty`: all may go; `at_least_one`: none may not.

    Tries each number of heads that a group may keep; each group then keeps that many, or goes, whichever costs less.
    """
    gone, size = set(removed), num_heads // num_kv_heads
    if empty and len(gone) == num_heads:
        return gone
    groups = [range(group * size, (group + 1) * size) for group in range(num_kv_heads)]
    candidates: list[set[int]] = []
    for count in range(size, 0, -1):  # of equals the first: whole groups go before a head of each
        options = [(_trimmed(group, gone, count), set(group), gone & set(group)) for group in groups]
        goes = [_cost(full, requested) < _cost(part, requested) for part, full, requested in options]
        extra_cost = [len(part ^ requested) - len(full ^ requested) for part, full, requested in options]
        if all(goes):  # some group must stay: the one for which that costs least
            goes[extra_cost.index(min(extra_cost))] = False
        if at_least_one and count == size and not any(goes):
            if num_kv_heads == 1:
                continue
            goes[extra_cost.index(max(extra_cost))] = True
        chosen = (full if go else part for go, (part, full, _) in zip(goes, options, strict=True))
        candidates.append(set().union(*chosen))
    return min(candidates, key=lambda candidate: _cost(candidate, gone), default=gone)


def least_groups(spec: ModelSpec, worth: Mapping[Head, float], count: int) -> HeadSet:
    """The `count` heads with the least worth, in whole groups, which can be cut out.

    Heads that share a key/value head are a group, worth the mean of its heads; where all heads of a layer share one
    (MQA), each counts by itself. Raises HeadError where whole groups do not come to `count` heads.
    """
    sites = {_layer(site): site for site in spec.sites}
    groups: dict[tuple[str, int, int], list[Head]] = {}
    for head in spec.heads:
        site = sites[head.stack, head.layer]
        group = head.index if site.num_kv_heads == 1 else site.kv_head_of(head.index)
        groups.setdefault((head.stack, head.layer, group), []).append(head)
    chosen: list[Head] = []
    skipped_sizes: list[int] = []
    for heads in sorted(groups.values(), key=lambda heads: sum(worth[head] for head in heads) / len(heads)):
        if len(chosen) + len(heads) <= count:
            chosen += heads
        else:
            skipped_sizes.append(len(heads))
    if len(chosen) != count:
        near = [number for number in (len(chosen), len(chosen) + min(skipped_sizes, default=0)) if number]
        raise HeadError(
            f"{count} heads of {spec.name} are not whole groups of those that share keys and values, "
            f"which go together: "
            f"give {' or '.join(map(str, dict.fromkeys(near)))}."
        )
    return spec.select(chosen)


def groups_of(spec: ModelSpec) -> list[HeadSet]:
    """The query heads of each key/value head, in the model's order."""
    return [
        spec.select([Head(site.stack, site.layer, index) for index in range(group * size, (group + 1) * size)])
        for site in spec.sites
        for size in [site.num_heads // site.num_kv_heads]
        for group in range(site.num_kv_heads)
    ]


def ways_to_lose(spec: ModelSpec, count: int | None, *, empty_layers: bool = False) -> tuple[str, ...]:
    """The ways in which `count` heads can go where heads share key/value heads; none where any heads can.

    `count` None: the ways in which some number can.

    Raises HeadError where no way comes to that number, with numbers that do.
    """
    if not any(1 < site.num_kv_heads < site.num_heads for site in spec.sites):
        return ()
    alike = len({(site.num_heads, site.num_kv_heads) for site in spec.sites}) == 1
    if count is None:
        return (EACH_LAYER, ANYWHERE, EACH_GROUP) if alike else (ANYWHERE,)
    num_heads, num_groups = len(spec.heads), sum(site.num_kv_heads for site in spec.sites)
    if not 0 < count < num_heads:
        raise HeadError(f"{count} heads cannot go: {spec.name} has {num_heads}, of which at least one must stay.")
    ways: list[str] = []
    if alike:
        if not count * spec.sites[0].num_kv_heads % num_heads:
            ways.append(EACH_LAYER)
        if not count % num_groups:
            ways.append(EACH_GROUP)
    sizes = [site.num_heads // site.num_kv_heads for site in spec.sites]
    most = sum(site.num_heads - (not empty_layers) * size for site, size in zip(spec.sites, sizes, strict=True))
    try:
        least_groups(spec, dict.fromkeys(spec.heads, 0.0), count)
    except HeadError as error:
        if not ways:
            uniform = (
                f", or a multiple of {num_groups}, the same number from each group" if len(set(sizes)) == 1 else ""
            )
            raise HeadError(f"{str(error).removesuffix('.')}{uniform}.") from error
        return tuple(ways)
    if count <= most:
        ways.append(ANYWHERE)
    if not ways:
        raise HeadError(
            f"{count} heads of {spec.name} in whole groups would leave a layer without any: at most {most} can go "
            f"(--empty-layers, empty_layers=True, allows it)."
        )
    return tuple(ways)


def require_legal(
    spec: ModelSpec, requested: HeadSet, shared: Mapping[str, str], empty_layers: bool
) -> dict[Layer, Kept]:
    """What stays of every layer that loses heads. `shared`: stack -> what its layers must lose alike.

    Raises HeadError where the request is impossible, with the nearest plan that is possible, or where a layer would be
    left empty without `empty_layers`.
    """
    lost = requested.by_layer()
    emptied = [site for site in spec.sites if len(lost.get(_layer(site), ())) == site.num_heads]
    if emptied and not empty_layers:
        raise HeadError(
            f"this removes all {emptied[0].num_heads} heads of {emptied[0]}: its attention would output its bias and "
            f"nothing else. Say empty_layers=True (--empty-layers) if that is meant, or keep one head."
        )
    if bound := [site for site in emptied if site.stack in shared]:
        raise HeadError(
            f"{bound[0]} cannot be left without heads: the layers of its stack share one bias of positions, which "
            f"each of them hands on. Keep at least one head in each layer."
        )
    removed = _nearest(spec, lost, shared, empty_layers)
    if requested and not any(removed.values()):  # to remove no head at all is no plan to advise
        removed = _nearest(spec, lost, shared, empty_layers, at_least_one=True)
    heads = {Head(*layer, index) for layer, indices in removed.items() for index in indices}
    if heads != set(requested):
        plan = str(spec.select(sorted(heads)))
        changes = len(heads ^ set(requested))
        raise HeadError(
            f"{str(requested)!r} cannot be cut out of {spec.name}: {_why(spec, lost, shared)} Nearest plan that can "
            f"({changes} head{'s' * (changes != 1)} different): {plan!r}."
        )
    remaining = {_layer(site): kept_of(site, removed.get(_layer(site), ())) for site in spec.sites}
    return {layer: stays for layer, stays in remaining.items() if stays is not None and lost.get(layer)}


def _nearest(
    spec: ModelSpec,
    lost: Mapping[Layer, tuple[int, ...]],
    shared: Mapping[str, str],
    empty: bool,
    at_least_one: bool = False,
) -> dict[Layer, set[int]]:
    """The heads to remove of each layer. `at_least_one`: at least one head of each layer that was to lose any."""
    removed: dict[Layer, set[int]] = {}
    for site in spec.sites:
        gone = lost.get(_layer(site), ())
        removed[_layer(site)] = nearest_in_layer(
            site.num_heads, site.num_kv_heads, gone, empty=empty, at_least_one=at_least_one and bool(gone)
        )
    for stack, rule in shared.items():
        sites = tuple(spec.stacks.get(stack, ()))
        requests = [set(lost.get(_layer(site), ())) for site in sites]
        if not any(requests):
            continue
        num_heads = sites[0].num_heads
        if rule == SAME_HEADS:  # each head goes from all layers or from none, by a majority of the layers
            votes = {head: sum(head in heads for heads in requests) for head in range(num_heads)}
            gone_everywhere = {head for head, count in votes.items() if 2 * count >= len(requests)}
            if len(gone_everywhere) == num_heads:
                gone_everywhere.remove(min(votes, key=lambda head: (votes[head], head)))
            if at_least_one and not gone_everywhere:
                gone_everywhere = {max(votes, key=lambda head: votes[head])}
            sets = [gone_everywhere for _ in requests]
        else:  # every layer loses as many heads as the median of the requests
            counts = sorted(len(heads) for heads in requests)
            middle = min(max(counts[len(counts) // 2], int(at_least_one)), num_heads - 1)
            sets = [_trimmed(range(num_heads), heads, num_heads - middle) for heads in requests]
        removed |= {_layer(site): heads for site, heads in zip(sites, sets, strict=True)}
    return removed


def _trimmed(group: range, gone: set[int], count: int) -> set[int]:
    """The heads to remove of a group so that it keeps `count`: the first requested ones stay, or the last others go."""
    lost = [head for head in group if head in gone]
    stays = [head for head in group if head not in gone]
    back = max(0, count - len(stays))
    return set(lost[back:]) | set(stays[count:])


def _cost(candidate: set[int], gone: set[int]) -> tuple[int, int]:
    """Changes of a request, then requested heads that stay: to be minimised in this order."""
    return len(candidate ^ gone), len(gone - candidate)


def _layer(site: Site) -> Layer:
    return site.stack, site.layer


def _why(spec: ModelSpec, lost: Mapping[Layer, tuple[int, ...]], shared: Mapping[str, str]) -> str:
    """The reason why a request cannot be cut out, in a sentence."""
    for site in spec.sites:
        if kept_of(site, lost.get(_layer(site), ())) is None:
            size = site.num_heads // site.num_kv_heads
            gone = set(lost[_layer(site)])
            sizes = [
                size - len(gone & set(range(group * size, (group + 1) * size))) for group in range(site.num_kv_heads)
            ]
            return (
                f"{site} has {site.num_heads} query heads over {site.num_kv_heads} key/value heads, which would be "
                f"left with {', '.join(map(str, sizes))}. Remove whole groups of {size} (the least important: "
                f"importance.lowest(N, groups=True), prune --lowest N), or the same number from each group that stays."
            )
    stack, rule = next(iter(shared.items()))
    for stack, rule in shared.items():
        requests = [set(lost.get(_layer(site), ())) for site in spec.stacks.get(stack, ())]
        if len({frozenset(heads) if rule == SAME_HEADS else len(heads) for heads in requests}) > 1:
            break
    where = f"stack {stack!r}" if stack else "this model"
    return f"the layers of {where} share one bias of positions, so that all of them must lose {rule}."
