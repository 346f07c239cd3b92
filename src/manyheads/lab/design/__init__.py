"""Designed heads: weights, not masks, of heads that attend to a chosen pattern, in a model of our own layers.

    lm = build([[previous(), None], [induction(), first()]], causal=True)

A design is a value (`HeadDesign`), made by the function that is named after its pattern; `build` puts designs and
random heads (None) into a small attention-only model, which is recorded, measured, labelled and edited like any other.
So it is known beforehand what each head does: to learn from, and to test tools that label heads
(`benchmarks.known_answers`). docs/reference/design.md explains how each is made, and what its sharpness guarantees.

`draw` makes one head from a picture instead: a grid of which token should look at which.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
