"""A converted model as a stock checkpoint, tried before it is kept; its card, and which head came from where.

The class, its config and its weights agree, so `save_pretrained` writes a folder that transformers alone loads; added
is the certainty: the folder is written beside its place, loaded in a fresh process and compared (`fresh_process`), and
only then moved into place. `manyheads.json` keeps the order of heads, so that names can be traced back.
Cost: the weights written once, and about 10 s for the other process.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from manyheads.errors import ModelError
from manyheads.heads import Head, HeadsLike
from manyheads.interventions.convert.grouping import Groups
from manyheads.interventions.convert.table import Comparison
from manyheads.interventions.save.fresh_process import Trial, fault_in, try_all, where_to_try
from manyheads.interventions.save.save import ZEROED, Saved, write_readers
from manyheads.interventions.save.whole_folder import replacing_folder
from manyheads.models import LoadedModel, quietly
from manyheads.models.weights.compact_form import MARK, STOCK
from manyheads.spec import ModelSpec

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
        return self.spec.layers[0].num_kv_heads

    def was(self, heads: HeadsLike) -> tuple[Head, ...]:
        """The names of these heads before heads changed places. Raises HeadError for heads that the model lacks."""
        return tuple(
            Head(head.stack, head.layer, self.permutation[head.layer][head.index]) for head in self.spec.select(heads)
        )

    def save(self, folder: str | os.PathLike[str]) -> Saved:
        """A stock checkpoint, tried in a fresh process first. See `save_converted.save`."""
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


def as_dict(lm: Converted) -> dict[str, Any]:
    """The conversion as plain data."""
    before = lm.before
    return {
        "format": FORMAT,
        "version": VERSION,
        "from": {"name": before.name, "architecture": before.architecture, "weights_hash": lm.weights_hash_before},
        "num_kv_heads": [before.layers[0].num_kv_heads, lm.num_kv_heads],
        "permutation": {str(layer): list(heads) for layer, heads in lm.permutation.items()},
        "groups": {str(layer): [list(group) for group in groups] for layer, groups in lm.groups.items()},
        "error_by_layer": {str(layer): error for layer, error in lm.error_by_layer.items()},
        "error_because": lm.error_because,
        "table": lm.table.to_dict(),
    }


def card(lm: Converted) -> str:
    """The README.md of the folder."""
    before, name = lm.before, type(lm.model).__name__
    errors = "\n".join(f"| L{layer} | {error:.3f} |" for layer, error in lm.error_by_layer.items())
    return f"""---
tags: [grouped-query-attention]
---
# {before.name}, {before.layers[0].num_kv_heads} key/value heads merged into {lm.num_kv_heads}

Keys and values of each group of heads were replaced by their mean (Ainslie et al. 2023), which costs quality until the
model is trained on. There are as many query heads as before, {before.layers[0].num_heads} a layer;
`manyheads.json` says which old head is where now.

**From:** {before.name}, a {before.architecture}; blake2b digest of its weights `{lm.weights_hash_before}`.

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
