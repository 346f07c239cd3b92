"""The sentence that tells an experiment's outcome says what was done, what changed and what random heads change."""

import manyheads as mh
from manyheads.plan import Ablate, Plan, Scale
from manyheads.studio.views.experiments import sentence
from tests.interventions.surgeries import TEXTS, loaded
from tests.models.eager import draw


def effect_of(lm, *steps, **options):
    return mh.effect(lm, Plan(list(steps)), TEXTS[0], **options)


def test_the_sentence_says_what_was_done_what_changed_and_what_random_heads_change(fresh):
    lm = loaded("llama", draw(fresh))
    one = effect_of(lm, Ablate("L1H1"), Scale("L0H2", 3), controls=5)
    said = sentence(one, 2)
    verb = "rises" if one.change > 0 else "falls"
    assert said.startswith(f"Without L1H1 and with L0H2 3 times as loud, the loss {verb} by {abs(one.change):.3g} nats")
    assert f"5 random sets of as many heads: {min(one.control):.3g} to {max(one.control):.3g} (" in said
    assert said.endswith("as much or more, up or down).")
    kl = effect_of(lm, mh.Average("L1"), mh.Copy("L0", source="L0H2"), metric="kl", controls=0)
    assert sentence(kl, 12).startswith(
        "With one mean map for the heads of L1 and with the weights of L0H2 in L0, what is predicted moves by "
    )
    assert sentence(kl, 12).endswith("; nothing to compare it with (none, as asked).")
    skipped = effect_of(lm, mh.SkipOutputProjection(1), Ablate("L0H1", "first"), Ablate("L0H2", "mean"), controls=0)
    assert sentence(skipped, 8).startswith(
        "Without the output projection of L1 and with L0H1 looking at the first token alone and with L0H2 held at the "
    )
    many = effect_of(lm, *[Ablate(f"L1H{head}") for head in range(4)], controls=0)
    assert sentence(many, 4).startswith("After 4 steps, the loss ")
    nothing = effect_of(lm, Scale("L1H1", 1.0), controls=1)
    assert sentence(nothing, 1) == "With L1H1 1 times as loud, nothing changes: scale L1H1 by 1 has no effect here."
