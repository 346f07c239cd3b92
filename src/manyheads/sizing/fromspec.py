"""From a `ModelSpec`, which knows attention and little else, to a description that says what it cannot tell."""

from __future__ import annotations

from manyheads.errors import ShapeError
from manyheads.sizing import blocks
from manyheads.sizing.shapes import Architecture, Attention, LayerShape
from manyheads.spec import ModelSpec

__all__ = ["from_spec"]

REMEDY = "Give the model itself, its config.json or its folder"


def from_spec(spec: ModelSpec) -> Architecture:
    """Attention's matrices site by site, and all else as one part; the cache as one that keeps every token.

    Raises ShapeError where a spec says too little: no sites, several stacks, no width of the residual stream.
    """
    if not spec.sites:
        raise ShapeError(f"the spec of {spec.name} has no attention to size. {REMEDY}.")
    if len(spec.stacks) > 1:
        raise ShapeError(
            f"the spec of {spec.name} has {len(spec.stacks)} stacks ({', '.join(spec.stacks)}) and does not say which "
            f"reads what: its cache cannot be told. {REMEDY}."
        )
    if spec.embed_dim < 1:
        raise ShapeError(f"the spec of {spec.name} has embed_dim={spec.embed_dim}, so no projections. {REMEDY}.")
    layers: list[LayerShape] = []
    for site in spec.layers:
        attention = Attention(site.num_heads, site.num_kv_heads, site.qk_dim, site.v_dim, causal=site.causal)
        layers.append(LayerShape(blocks.projections(spec.embed_dim, attention), (attention,)))
    told = sum(weights.total for layer in layers for weights in layer.weights)
    if told > spec.num_parameters:
        raise ShapeError(
            f"the spec of {spec.name} has {spec.num_parameters:,} parameters, fewer than the {told:,} that its "
            f"attention alone would have: it does not describe ordinary projections. {REMEDY}."
        )
    why = f"a spec says how attention is shaped and not what else there is. {REMEDY}"
    return Architecture(
        name=spec.name,
        family=spec.architecture,
        embed_dim=spec.embed_dim,
        layers=tuple(layers),
        outside=(blocks.vector("other", spec.num_parameters - told),),
        vocab_size=spec.vocab_size,
        max_positions=spec.max_positions,
        generates=all(site.causal for site in spec.layers),
        because=(
            "from a spec: q, k, v and o are their matrices, everything else, their biases too, is in one part",
            "the cache is one that keeps every token: a spec does not say whether layers have windows",
        ),
        untold=(("parts", why), ("flops", why)),
    )
