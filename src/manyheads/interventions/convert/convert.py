"""MHA to GQA: key/value heads merged into fewer, as their means, after heads that are alike were put side by side.

`convert_to_gqa` copies a model and changes the copy in three steps, each checked on fresh random inputs: heads change
places (free: outputs stay the same), each group's keys and values become their mean (this step costs quality), and one
of the equal heads of each group remains (free again). The result is a stock model of its own class, whose config counts
fewer key/value heads.
Why: the cache, and the part of it that decoding reads, shrink by the number of heads in a group. Quality is not
preserved: Ainslie et al. train on for 5 % of the pre-training, and the table notes that beside its numbers.

The heads that are merged into one are as alike as possible. `distances` measures how far any two heads' projections are
apart; `group_heads` puts heads into groups of one size, so that the sum of squared distances to each group's mean is
small; `merge` takes the means. Why this measure, and no cosine: conversion replaces a head by its group's mean, so that
sum, as a share of all weights, is exactly the error that merging makes in k and v. Cosine ignores lengths, and means do
not. Keys and values count alike, each as a share of its own layer's weights, however different their scales are. How:
pairwise swaps from several random starts. Starts that put the nearest heads together first were tried: no better, and
four times slower. The best groups are not guaranteed (balanced clustering is NP-hard). Cost: O(g^2) a swap for g heads;
32 heads take 30 ms, 128 half a second.

`Converted.save` writes a stock checkpoint with its card. Class, config and weights agree, so `save_pretrained` makes a
folder that transformers alone loads; added is the certainty: the folder is written beside its place, loaded in a fresh
process and compared (`fresh_process`), and only then moved into place. `manyheads.json` keeps the order of heads, so
that names can be traced back. Cost: the weights written once, and about 10 s for the other process.

Source: Ainslie et al. 2023, GQA, sections 2.1 (mean pooling, of neighbours) and 2.2; Chen et al. 2024, AsymGQA (groups
by likeness).
"""

# device: groups are found on the host

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from einops import rearrange, reduce, repeat
from jaxtyping import Float, Float64, Shaped
from torch import Tensor, nn

from manyheads.base import Json, brief, divisors, plain
from manyheads.edits import MetricLike
from manyheads.errors import ModelError, ShapeError
from manyheads.heads import Head, HeadsLike
from manyheads.interventions.convert.table import Comparison, choose_quality, compare
from manyheads.interventions.save.fresh_process import Trial, fault_in, try_all, where_to_try
from manyheads.interventions.save.save import ZEROED, Saved, made_from, write_readers
from manyheads.interventions.save.stock_form import Proposal, checked
from manyheads.interventions.save.whole_folder import replacing_folder
from manyheads.interventions.verify import SAME, difference, outputs_of, random_inputs, require_in_memory
from manyheads.models import LoadedModel, kept_in, quietly
from manyheads.models.weights import ADVICE, MARK, REMEMBERED, STOCK, Projections, projections_of
from manyheads.spec import ModelSpec, Site

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
    lm: LoadedModel,
    num_kv_heads: int,
    *,
    regroup: bool = True,
    texts: str | Sequence[Any] | None = None,
    metric: MetricLike = "auto",
) -> Converted:
    """A copy of a loaded model with `num_kv_heads` key/value heads in every layer; `lm` stays as it is, to the bit.

    Each new head is the mean of the same number of old ones: of similar ones (`regroup`), else of neighbours. With as
    many as before, the copy is the same model, to the bit. From MHA or from GQA; 1 is MQA.
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
    story = f"the same number of key/value heads as before, {present}: nothing was changed"
    if present != num_kv_heads:
        how = "those that are alike" if regroup else "neighbours"
        story = f"{present} key/value heads merged into {num_kv_heads}, {how}"
    because = f"{lm.because}; {story}"
    after = LoadedModel(model, lm.tokenizer, lm.name, because, lm.processor, lm.stored)
    errors, table = compare(lm, after, quality)
    by_weights = {layer: (merge_error(apart[layer], groups[layer]) / len("kv")) ** 0.5 for layer in groups}
    return Converted(
        model,
        lm.tokenizer,
        lm.name,
        because,
        lm.processor,
        lm.stored,
        before=lm.spec,
        weights_hash_before=lm.weights_hash,
        permutation={site.layer: _query_heads(site, groups[site.layer]) for site in sites},
        groups=groups,
        error_by_layer=errors or by_weights,
        error_because=ON_TEXTS if errors else BY_WEIGHTS,
        table=table,
    )


def _require_convertible(lm: LoadedModel, num_kv_heads: object) -> tuple[Site, ...]:
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
            f"the same number of old ones. Use one of {divisors(present)}."
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


Groups = tuple[tuple[int, ...], ...]
STARTS = 16  # of 680 random cases of 6 to 12 heads, one start missed the best in 54, four in 3, sixteen in none
GAIN = 1e-9  # of the whole: a swap that gains less is rounding, and could be taken back for ever


def distances(*weights: Float[Tensor, "g ..."]) -> Float64[Tensor, "g g"]:
    """Squared distances between heads, summed over `weights` (of k, of v), each as a share of its own squared length.

    So the error of a grouping, of all weights together, is at most `len(weights)`.
    """
    total = torch.zeros(len(weights[0]), len(weights[0]), dtype=torch.float64)
    for weight in weights:
        rows = rearrange(weight.detach().to("cpu", torch.float64), "g ... -> g (...)")
        total_square = float(rows.square().sum())
        if total_square:
            squares = rows @ rows.T
            lengths = squares.diagonal()
            total += (lengths[:, None] + lengths[None] - 2 * squares).clamp_min(0) / total_square
    return total.fill_diagonal_(0)


def neighbours(num_heads: int, num_groups: int) -> Groups:
    """Groups of heads that lie side by side. Raises ShapeError where `num_groups` does not divide `num_heads`."""
    if not 1 <= num_groups <= num_heads or num_heads % num_groups:
        raise ShapeError(
            f"{num_heads} heads do not make {num_groups} groups of one size. Use one of {divisors(num_heads)}."
        )
    size = num_heads // num_groups
    return tuple(tuple(range(begin, begin + size)) for begin in range(0, num_heads, size))


def group_heads(apart: Float64[Tensor, "g g"], num_groups: int) -> Groups:
    """Equally large groups with a small sum of squared distances to their means, never larger than the neighbours'.

    The neighbours, and several groupings at random, are each improved by swapping the two heads that gain most, as long
    as that gains anything; the best is taken. The same distances give the same groups, each in order, the groups by
    their first head.
    Raises ShapeError where `num_groups` does not divide the number of heads.
    """
    # The neighbours are always tried first, so that regrouping is never worse than leaving heads where they are.
    starts = [neighbours(len(apart), num_groups)]
    if 1 < num_groups < len(apart):
        generator = torch.Generator().manual_seed(0)
        shuffled = [torch.randperm(len(apart), generator=generator) for _ in range(STARTS)]
        starts += [tuple(map(tuple, order.view(num_groups, -1).tolist())) for order in shuffled]
    best, least = starts[0], merge_error(apart, starts[0])
    for start in starts:
        groups = _climbed(apart, start)
        error = merge_error(apart, groups)
        if error < least - GAIN * float(apart.sum()):
            best, least = groups, error
    return tuple(sorted(tuple(sorted(group)) for group in best))


def merge_error(apart: Float64[Tensor, "g g"], groups: Sequence[Sequence[int]]) -> float:
    """The sum of squared distances of heads to their group's mean, from the distances between heads.

    That sum is half of a group's distances between all pairs, divided by its size (Huygens).
    """
    return sum(float(apart[list(group)][:, list(group)].sum()) / (2 * len(group)) for group in groups)


def merge(weight: Shaped[Tensor, "g ..."], num_groups: int, *, repeated: bool = False) -> Shaped[Tensor, "n ..."]:
    """Means of neighbours, in the weight's dtype (torch adds up in float32); `repeated`: in every head's place."""
    means = reduce(weight, "(n size) ... -> n ...", "mean", n=num_groups)
    return repeat(means, "n ... -> (n size) ...", size=len(weight) // num_groups) if repeated else means


def _climbed(apart: Float64[Tensor, "g g"], groups: Groups) -> Groups:
    """Swap the two heads that gain most, until no swap gains."""
    group_of = torch.empty(len(apart), dtype=torch.long)
    for number, group in enumerate(groups):
        group_of[list(group)] = number
    enough = GAIN * float(apart.sum())
    while True:
        to_group = apart @ torch.nn.functional.one_hot(group_of, len(groups)).double()  # head -> sum over each group
        to_other = to_group[:, group_of]  # [i, j]: from head i to the group of head j
        to_own = to_other.diagonal()
        # What swapping i and j adds to the sum: i's distances to j's group instead of its own, and the same for j. The
        # distance between i and j is in both new sums, though the two are not together after the swap.
        change = to_other + to_other.T - 2 * apart - to_own[:, None] - to_own[None]
        # Within a group a swap changes nothing, and the formula above counts its own distance wrongly.
        change[group_of[:, None] == group_of[None]] = 0
        if not change.numel() or float(change.min()) >= -enough:
            break
        first, second = divmod(int(change.argmin()), len(apart))
        group_of[[first, second]] = group_of[[second, first]]
    return tuple(tuple((group_of == number).nonzero()[:, 0].tolist()) for number in range(len(groups)))


FORMAT, VERSION = "manyheads converted model", 1
BECAUSE = "its own family's config counts key/value heads"


@dataclass(frozen=True, eq=False)
class Converted(LoadedModel):
    """A model with fewer key/value heads than it was built with. All measurements precede any further training.

    `before` describes the original model, `weights_hash_before` is the digest of its weights. `permutation`: layer ->
    the old query head at each new place; `groups`: layer -> the old key/value heads of which each new one is the mean.
    `error_by_layer`: layer -> relative Frobenius error, of the tensors that `error_because` names. `table`: before and
    after.
    """

    before: ModelSpec = field(kw_only=True, repr=False)
    weights_hash_before: str = field(kw_only=True)
    permutation: Mapping[int, tuple[int, ...]] = field(kw_only=True, repr=False)
    groups: Mapping[int, Groups] = field(kw_only=True, repr=False)
    error_by_layer: Mapping[int, float] = field(kw_only=True, repr=False)
    error_because: str = field(kw_only=True, repr=False)
    table: Comparison = field(kw_only=True, repr=False)

    @property
    def num_kv_heads(self) -> int:
        return self.spec.sites[0].num_kv_heads

    def was(self, heads: HeadsLike) -> tuple[Head, ...]:
        """The names of these heads before heads changed places. Raises HeadError for heads that the model lacks."""
        return tuple(
            Head(head.stack, head.layer, self.permutation[head.layer][head.index]) for head in self.spec.select(heads)
        )

    def to_dict(self) -> Json:
        """Plain data for JSON: which heads of which model were merged, and what that changes."""
        return {
            "model": {**made_from(self.before, self.weights_hash_before, self.stored), "because": self.because},
            "num_kv_heads": [self.before.sites[0].num_kv_heads, self.num_kv_heads],
            "permutation": plain(self.permutation),
            "groups": plain(self.groups),
            "error_by_layer": plain(self.error_by_layer),
            "error_because": self.error_because,
            "table": self.table.to_dict(),
        }

    def __repr__(self) -> str:
        present = self.before.sites[0].num_kv_heads
        return brief(f"Converted({self.name}: {present} key/value heads of each layer merged into {self.num_kv_heads})")

    def save(self, folder: str | os.PathLike[str]) -> Saved:
        """A stock checkpoint, tried in a fresh process first. See `save`."""
        return save(self, folder)


def save(lm: Converted, folder: str | os.PathLike[str]) -> Saved:
    """Write `lm` to `folder`, with its tokenizer; a folder that holds a checkpoint is replaced, whole, in one step.

    Raises ModelError where a fresh process does not load the same model from it; FileAccessError for what the
    operating system refuses, or where the folder holds anything but a checkpoint. In either case nothing is written.
    """
    target, name = Path(os.path.expanduser(folder)), type(lm.model).__name__
    lm, tried_on = where_to_try(lm)
    model: Any = lm.model
    with replacing_folder(target, ZEROED, lm.model) as place, quietly():
        model.save_pretrained(place)
        write_readers(lm, place)
        (place / "README.md").write_text(card(lm), encoding="utf-8")
        (place / MARK).write_text(json.dumps(as_dict(lm), indent=1) + "\n", encoding="utf-8")
        # The folder is complete before it is tried, so that the trial reads what the user will read.
        (result,) = try_all([Trial(place, model)])
        if fault := fault_in(result):
            raise ModelError(f"{lm.name} was not saved: as {name}, {fault}. Please report that.")
    return Saved(STOCK, target, None, name, BECAUSE, result["error"], tried_on)


def as_dict(lm: Converted) -> Json:
    """The conversion as plain data, for manyheads.json."""
    facts = {name: value for name, value in lm.to_dict().items() if name != "model"}
    origin = made_from(lm.before, lm.weights_hash_before, lm.stored)
    return {"format": FORMAT, "version": VERSION, "from": origin, **facts}


def card(lm: Converted) -> str:
    """The README.md of the folder."""
    before, name = lm.before, type(lm.model).__name__
    errors = "\n".join(f"| L{layer} | {error:.3f} |" for layer, error in lm.error_by_layer.items())
    return f"""---
tags: [grouped-query-attention]
---
# {before.name}, {before.sites[0].num_kv_heads} key/value heads merged into {lm.num_kv_heads}

Keys and values of each group of heads were replaced by their mean (Ainslie et al. 2023), which costs quality until the
model is trained on. The number of query heads is unchanged, {before.sites[0].num_heads} a layer;
`manyheads.json` says which old head is where now.

**From:** {before.name}, a {before.architecture}; blake2b digest of its weights
`{lm.weights_hash_before}`{lm.stored and f"; {lm.stored}"}.

**Measured at conversion**, before any training on; whether these weights have been trained since, is not known here.

```
{lm.table}
```

Relative error, at conversion, of {lm.error_because}:

| layer | error |
|---|---|
{errors}

**Checked:** regrouping alone left the outputs as they were, on random inputs; and this folder, loaded in a fresh
process, equals the model that was saved.

```python
from transformers import {name}

model = {name}.from_pretrained("FOLDER")
```

Made by manyheads.
"""
