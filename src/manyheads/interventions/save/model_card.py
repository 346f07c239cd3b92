"""The README.md of a saved pruned model: what was removed, from what, on what evidence, the cost, how to load it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from manyheads.heads import parse_heads
from manyheads.models import kept_in
from manyheads.spec import CROSS, ModelSpec

__all__ = ["Costs", "costs_of", "model_card", "removed_text"]


NO_EVIDENCE = "none was given"


@dataclass(frozen=True)
class Costs:
    """Before and after, by counting: parameters, and what one token leaves in the caches (0: it does not generate)."""

    parameters: tuple[int, int]
    cache_bytes: tuple[int, int]


def costs_of(lm: Any) -> Costs:
    generates = bool(getattr(lm.model, "can_generate", lambda: False)())
    kept = [cache_bytes_per_token(spec, lm.dtype) if generates else 0 for spec in (lm.before, lm.spec)]
    return Costs((lm.before.num_parameters, lm.spec.num_parameters), (kept[0], kept[1]))


def removed_text(lm: Any) -> str:
    """The removed heads in the grammar; "" where there are none."""
    counts: dict[str, dict[int, int]] = {}
    for kept in kept_in(lm.model):
        counts.setdefault(kept.site.stack, {})[kept.site.layer] = kept.site.num_heads
    shape = {stack: [layers.get(layer, 0) for layer in range(max(layers) + 1)] for stack, layers in counts.items()}
    return str(parse_heads(list(lm.removed), shape))


def model_card(lm: Any, form: str, because: str, evidence: str | None, loaded_by: str) -> str:
    """The page, in Markdown. `loaded_by`: lines of Python that load what lies in the folder."""
    costs, before = costs_of(lm), lm.before
    rows = [_row("parameters", *costs.parameters)]
    if costs.cache_bytes[0]:
        rows.append(_row("cache, bytes a token", *costs.cache_bytes))
    removed = removed_text(lm)
    return f"""---
tags: [pruned, attention-heads]
---
# {before.name}, {len(lm.removed)} attention head{"s" * (len(lm.removed) != 1)} removed

**Removed:** {removed or "nothing"} (layers and heads counted from 0, as in the model that they were removed from).

**From:** {before.name}, a {before.architecture} with {len(before.heads)} heads; blake2b digest of its weights
`{lm.weights_hash_before}`.

**Evidence for removing them:** {" ".join((evidence or NO_EVIDENCE).split())}.

| | before | after | |
|---|---|---|---|
{chr(10).join(rows)}

**Checked:** when these heads were removed, outputs equalled those of the whole model with these heads' outputs at zero,
to {lm.error:.1e} of the largest output on random inputs (zeroing them changed the outputs by {lm.effect:.1e}); and this
folder, loaded in a fresh process, equals the model that was saved.

## Form: {form}

{because[:1].upper()}{because[1:]}.

```python
{loaded_by}
```

Made by manyheads.
"""


def as_dict(lm: Any, evidence: str | None) -> dict[str, Any]:
    """The same as data, for manyheads.json."""
    costs, before = costs_of(lm), lm.before
    return {
        "from": {"name": before.name, "architecture": before.architecture, "weights_hash": lm.weights_hash_before},
        "removed": removed_text(lm),
        "evidence": evidence,
        "parameters": list(costs.parameters),
        "cache_bytes_per_token": list(costs.cache_bytes),
        "error": lm.error,
        "effect": lm.effect,
    }


def _row(what: str, before: int, after: int) -> str:
    return f"| {what} | {before:,} | {after:,} | {100 * (after - before) / before:+.1f} % |"


def cache_bytes_per_token(spec: ModelSpec, dtype: torch.dtype) -> int:
    """What one token leaves in the caches of a model that generates: k and v of every layer that reads its own text."""
    width = torch.finfo(dtype).bits // 8
    causal = [site for site in spec.sites if site.causal and site.stack != CROSS]
    return sum(site.num_kv_heads * (site.qk_dim + site.v_dim) for site in causal) * width
