"""MHA to GQA: key/value heads merged into fewer, as their means, after heads that are alike were put side by side.

`convert_to_gqa` copies a model and changes the copy in three steps, each checked on fresh random inputs: heads change
places (free: outputs stay the same), each group's keys and values become their mean (this step costs quality), and one
of the equal heads of each group remains (free again). The result is a stock model of its own class, whose config counts
fewer key/value heads.
Why: the cache, and the part of it that decoding reads, shrink by the number of heads in a group. Quality is not
preserved: Ainslie et al. train on for 5 % of the pre-training, and the table notes that beside its numbers.
Source: Ainslie et al. 2023, GQA, sections 2.1 and 2.2. Which heads go together: `interventions.convert.grouping`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from manyheads.base import divisors
from manyheads.errors import ModelError, ShapeError
from manyheads.interventions.convert.grouping import Groups, distances, group_heads, merge, merge_error, neighbours
from manyheads.interventions.convert.table import choose_quality, compare
from manyheads.interventions.prune.verify import SAME, difference, outputs_of, random_inputs, require_in_memory
from manyheads.interventions.save.save_converted import Converted
from manyheads.interventions.save.stock_form import Proposal, checked
from manyheads.models import LoadedModel, kept_in
from manyheads.models.weights.cut import REMEMBERED
from manyheads.models.weights.projections import ADVICE, Projections, projections_of
from manyheads.spec import Site

COUNT = "num_key_value_heads"
FAMILIES = (
    "llama", "mistral", "ministral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma", "gemma2",
    "gemma3_text", "phi", "phi3", "phimoe", "olmo", "granite", "cohere", "cohere2", "starcoder2", "stablelm", "smollm3",
    "gpt_oss", "nanochat", "glm", "glm4", "helium", "exaone4", "nemotron", "hunyuan_v1_dense", "lfm2", "apertus",
    "seed_oss", "eurobert", "jais2",
)  # fmt: skip
"""Model types of transformers 5.23 that were converted, saved and loaded; others are tried, and refused by name."""

ON_TEXTS = "what each layer's attention puts out on these texts, given what it reads in the model as it was"
BY_WEIGHTS = "the key and value weights of each layer (no texts were given)"


def convert_to_gqa(
    lm: Any,
    num_kv_heads: int,
    *,
    regroup: bool = True,
    texts: str | Sequence[Any] | None = None,
    metric: str | Callable[..., Any] = "auto",
) -> Converted:
    """A copy of a loaded model with `num_kv_heads` key/value heads in every layer; `lm` stays as it is, to the bit.

    Each new head is the mean of equally many old ones: of similar ones (`regroup`), else of neighbours. With as many as
    before, the copy is the same model, to the bit. From MHA or from GQA; 1 is MQA.
    `texts`: for the table's quality (`metric`, as in `effect`), its decode speed, and errors of attention outputs
    instead of weights. Expect bad numbers: the model is not trained on.

    Raises ShapeError where `num_kv_heads` does not divide the present number; ModelError for a model whose config
    cannot count them, or whose copy did not pass a check; TextError and StatisticError for what cannot be compared.
    Cost: a second copy of the model (and its largest weight in float32 for the checks, if it is in half precision),
    five passes over two short texts; with `texts`, two passes over them and some decoding.
    """
    sites = _require_convertible(lm, num_kv_heads)
    quality = None if texts is None else choose_quality(lm, texts, metric)  # faults before anything slow begins
    try:
        apart: dict[int, Float64[Tensor, "g g"]] = {}
        for site in sites:
            projections, rows = projections_of(lm.model, site), list[Tensor]()
            for part in "kv":
                weight, bias = projections.read(part)
                # A bias counts as one more column: heads that differ in it alone are different heads.
                rows.append(weight if bias is None else torch.cat([weight, bias[..., None].to(weight)], -1))
            apart[site.layer] = distances(*rows)
        # Of as many groups as heads each is one head, in its place.
        make_groups = group_heads if regroup else lambda distances, count: neighbours(len(distances), count)
        groups = {layer: make_groups(distances, num_kv_heads) for layer, distances in apart.items()}
        model = _converted(lm, groups)
    except ModelError as error:
        raise _cannot(lm, str(error).replace(ADVICE, "")) from error
    present = sites[0].num_kv_heads
    story = f"as many key/value heads as before, {present}: nothing was changed"
    if present != num_kv_heads:
        how = "those that are alike" if regroup else "neighbours"
        story = f"{present} key/value heads merged into {num_kv_heads}, {how}"
    because = f"{lm.because}; {story}"
    after = LoadedModel(model, lm.tokenizer, lm.name, because, lm.processor)
    errors, table = compare(lm, after, quality)
    by_weights = {layer: (merge_error(apart[layer], groups[layer]) / len("kv")) ** 0.5 for layer in groups}
    return Converted(
        model,
        lm.tokenizer,
        lm.name,
        because,
        lm.processor,
        before=lm.spec,
        weights_hash_before=lm.weights_hash,
        permutation={site.layer: _query_heads(site, groups[site.layer]) for site in sites},
        groups=groups,
        error_by_layer=errors or by_weights,
        error_because=ON_TEXTS if errors else BY_WEIGHTS,
        table=table,
    )


def _require_convertible(lm: Any, num_kv_heads: Any) -> tuple[Site, ...]:
    """The sites to convert, whose key/value heads one number in a config counts. Raises ModelError or ShapeError."""
    require_in_memory(lm, "convert_to_gqa", "convert")
    if any(not cut.is_whole for cut in kept_in(lm.model)):
        raise ModelError(
            f"{lm.name} was pruned in this process: save it, and convert what mh.load makes of a stock checkpoint; or "
            f"convert first and prune afterwards."
        )
    sites = lm.spec.sites
    configs = [getattr(lm.model.get_submodule(site.module.split("#")[0]), "config", None) for site in sites]
    for config in configs or [None]:
        # By the class's fields: a count that somebody added to an instance is read by nobody.
        if COUNT not in {*getattr(type(config), "__dataclass_fields__", ()), *getattr(config, "attribute_map", ())}:
            raise _cannot(lm, f"its config has no {COUNT}")
    if len(lm.spec.stacks) > 1 or len(set(map(id, configs))) > 1:
        raise _cannot(
            lm, f"it has {len(sites)} attention layers that no single config counts ({sites[0]}, {sites[-1]})"
        )
    present = sites[0].num_kv_heads
    if uneven := [site for site in sites if site.num_kv_heads != present]:
        counts = f"{sites[0]} has {present} key/value heads, {uneven[0]} has {uneven[0].num_kv_heads}"
        raise _cannot(lm, f"its layers differ, and a config counts once: {counts}")
    if type(num_kv_heads) is not int or num_kv_heads < 1 or present % num_kv_heads:
        raise ShapeError(
            f"{num_kv_heads=} does not divide the {present} key/value heads of {lm.name}: each new one is the mean of "
            f"equally many. Use one of {divisors(present)}."
        )
    return sites


def _cannot(lm: LoadedModel, why: str) -> ModelError:
    return ModelError(
        f"{lm.name} ({type(lm.model).__name__}) cannot be given fewer key/value heads: {why.rstrip('. ')}. Families "
        f"that can: {', '.join(FAMILIES)}."
    )


def _query_heads(site: Site, groups: Groups) -> tuple[int, ...]:
    """The query heads in their new order: those of each key/value head stay together."""
    size = site.num_heads // site.num_kv_heads
    return tuple(kv_head * size + offset for group in groups for kv_head in group for offset in range(size))


def _converted(lm: LoadedModel, groups: Mapping[int, Groups]) -> nn.Module:
    """A copy: regrouped, merged, one head of each group kept; outputs are compared after each step that keeps them.

    Raises ModelError where they differ, or where the class does not read the count in its new config.
    """
    model = copy.deepcopy(lm.model)
    # The copy forgets what an earlier cut remembered of the original: its heads are new ones.
    vars(model).pop(REMEMBERED, None)
    if all(len(group) == 1 for layer_groups in groups.values() for group in layer_groups):
        return model
    # One draw for all checks: what a step changed shows only where both sides read the same.
    inputs = random_inputs(lm.model)
    by_layer = {site.layer: projections_of(model, site) for site in lm.spec.sites}
    for layer, projections in by_layer.items():
        order = [head for group in groups[layer] for head in group]
        _select(projections, _query_heads(projections.site, groups[layer]), order)
    _require_same("its heads in another order", outputs_of(lm.model, inputs, in_full=True), model, inputs)
    # Each group's mean goes into the places of all of its key/value heads: weights, biases and other tensors. So the
    # shapes stay, and the model still runs: what merging costs is measured before any head is dropped.
    for layer, projections in by_layer.items():
        num_groups = len(groups[layer])
        for part in "kv":
            weight, bias = (
                None if tensor is None else merge(tensor, num_groups, repeated=True)
                for tensor in projections.read(part)
            )
            assert weight is not None
            projections.write(part, weight, bias)
        with torch.no_grad():
            for path, (axis, part) in projections.by_head.items():
                if part in "kv":
                    tensor = projections.module.get_parameter(path)
                    tensor.copy_(merge(tensor.movedim(axis, 0), num_groups, repeated=True).movedim(0, axis))
    # From here on outputs must stay: each group's heads are equal, and dropping all but one changes nothing.
    merged = outputs_of(model, inputs, in_full=True)
    for layer, projections in by_layer.items():
        site = projections.site
        _select(projections, range(site.num_heads), range(0, site.num_kv_heads, len(groups[layer][0])))
        setattr(projections.module.config, COUNT, len(groups[layer]))
    if fault := checked(model, Proposal(type(model), model.config, "its own family")).fault:
        raise ModelError(f"its class does not go by {COUNT}: {fault}")
    _require_same("one of each group's equal key/value heads", merged, model, inputs)
    return model


def _select(projections: Projections, heads: Sequence[int], kv_heads: Sequence[int]) -> None:
    """Select heads in place. The module keeps the model's own config, since all layers will have the same numbers."""
    config = projections.module.config
    projections.select(heads, kv_heads)
    projections.module.config = config


def _require_same(change: str, expected: dict[str, Tensor], model: nn.Module, inputs: dict[str, Tensor]) -> None:
    """Raises ModelError unless the model's outputs are as before; `change` names the step that was taken."""
    try:
        gap = difference(outputs_of(model, inputs, in_full=True), expected)
    except Exception as error:  # any kind: the model was changed where it should not be
        raise ModelError(f"with {change} it does not run ({type(error).__name__}: {error})") from error
    if not gap <= SAME:
        raise ModelError(
            f"with {change} it should compute the same, and differs by {gap:.1e} of the largest output, so it is built "
            f"in a way that is not known here"
        )
