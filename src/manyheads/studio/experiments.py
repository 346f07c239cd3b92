"""An experiment: what a plan changes on a text, token by token, beside random heads; and what one head is worth.

Why here: the page wants one answer, with a sentence, tokens and guesses beside the numbers. The numbers themselves are
`mh.effect`'s; the two passes of our own, one of them under `mh.applied`, read what is drawn along the text.
Cost: 4 + `controls` forward passes over the text. `progress` is called at every layer of each of them, so whatever it
raises stops the work within a layer; the model is as it was, for `mh.effect` and `mh.applied` leave it so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from manyheads.errors import HeadError
from manyheads.interventions.apply.applied import applied
from manyheads.interventions.effects.effect import CONTROLS
from manyheads.interventions.effects.effect import Effect
from manyheads.interventions.effects.effect import effect
from manyheads.interventions.effects.metrics import METRICS
from manyheads.interventions.effects.metrics import choose_metric
from manyheads.interventions.effects.metrics import Batch
from manyheads.interventions.effects.metrics import exact
from manyheads.interventions.effects.metrics import outputs_of
from manyheads.interventions.effects.metrics import read_corpus
from manyheads.models.taps.tap import tap
from manyheads.models.inputs.texts import batches
from manyheads.models.inputs.texts import read_texts
from manyheads.models.inputs.texts import tokens_of
from manyheads.plan import Ablate, Copy, Plan
from manyheads.recording.tokens import Sinks
from manyheads.statistics.head_table import number
from manyheads.studio.effectwords import sentence
from manyheads.studio.jobs import Say
from manyheads.studio.plans import corpus_of, plan_of
from manyheads.studio.recordings import recording_id
from manyheads.studio.schema.experiments import Experiment, ExperimentAsk, Guess
from manyheads.studio.schema.recordings import Worth
from manyheads.studio.telling import told_tokens
from manyheads.studio.workspace import digest

__all__ = ["run", "worth"]

GUESSES = 8  # the likeliest next tokens before, and the likeliest after: what fits beside a text
OWN_PASSES = 2
LOSS_WORDS = "each token's loss, after less before, in nats: the first token is not predicted"
LAST_WORDS = "how far each token's last state turned: 1 - cosine, from 0 (as it was) to 2 (turned round)"
NO_STATES = "this model returns no state for each token, so there is nothing to tell token by token"


def run(lm: Any, ask: ExperimentAsk, *, progress: Say) -> Experiment:
    """Carry out a plan on a text, and say what it changed. `progress(words, done, total)` may raise, to stop.

    Errors: those of `mh.effect` and of plans (PlanError, HeadError, TextError, StatisticError, ModelError).
    """
    plan = plan_of(ask.plan)
    num_heads = _num_heads(lm, plan)  # before anything is read: heads that there are not are told at once
    corpus, because = corpus_of(plan, ask.text, ask.corpus)
    reading = read_texts(lm, ask.text)
    counted = Counted(progress, len(batches(reading)) * (2 + ask.controls) + OWN_PASSES)
    if corpus is not None:  # read for the effect, and once more for what is told along the text
        counted.total += 2 * len(batches(read_texts(lm, corpus)))
    with counted.passes(lm.model, "with these heads, without them, and without random ones"):
        options = {"metric": ask.metric, "controls": ask.controls, "seed": ask.seed}
        found = effect(lm, plan, ask.text, corpus=corpus, **options)
    with counted.passes(lm.model, "token by token"):
        seen = _along(lm, plan, ask.text, corpus)
    notes = {**found.notes, **_corpus_notes(because, ask), **_window_notes(len(reading.pieces), found)}
    return Experiment(
        id=_digest(ask, lm.name),
        name=ask.name or str(plan),
        model=ask.model,
        text=ask.text,
        plan=ask.plan,
        plan_words=str(plan),
        metric=found.metric,
        unit=found.unit,
        change=found.change,
        low=found.low,
        high=found.high,
        before=found.before,
        after=found.after,
        control=list(found.control),
        share_of_controls_above=found.share_of_controls_above,
        tokens=told_tokens(tokens_of(reading, [0], None, ""), Sinks()),
        per_token=_aligned(seen.per_token, len(reading.pieces[0].ids)),
        per_token_words=seen.words,
        guesses=seen.guesses,
        before_recording=recording_id(ask.model, ask.text),
        after_recording=recording_id(ask.model, ask.text, ask.plan),
        words=sentence(found, num_heads),
        notes=notes,
    )


def worth(lm: Any, recording: str, head: str, text: str, kind: str, *, progress: Say) -> Worth:
    """What is lost on a text without one head, ablated as `kind` says, beside random heads.

    Cost: 2 + `CONTROLS` forward passes. Errors: HeadError for what is not one head of the model; as `run`.
    """
    asked = lm.spec.select(head)
    if len(asked) != 1:
        raise HeadError(f"{head!r} is {len(asked)} heads of {lm.name}: name one, as in 'L3H7'.")
    plan = Plan(Ablate(str(asked), kind=kind))
    corpus, because = corpus_of(plan, text)
    counted = Counted(progress, len(batches(read_texts(lm, text))) * (2 + CONTROLS))
    if corpus is not None:
        counted.total += len(batches(read_texts(lm, corpus)))
    with counted.passes(lm.model, f"with {asked}, without it, and without random heads"):
        found = effect(lm, plan, text, corpus=corpus, controls=CONTROLS)
    return Worth(
        head=str(asked),
        recording=recording,
        kind=kind,
        metric=found.metric,
        unit=found.unit,
        change=found.change,
        control=list(found.control),
        words=sentence(found, 1),
        notes={**found.notes, **_corpus_notes(because)},
    )


# ------------------------------------------------------------------------------------------------- how far the work is


@dataclass(eq=False)
class Counted:
    """Counts forward passes, and tells `progress` of them, at every layer."""

    progress: Say
    total: int
    done: int = -1  # passes before the one under way
    first: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def passes(self, model: Any, words: str) -> Iterator[None]:
        """Inside, every layer's call of the model in this thread is told. An edit that edits nothing costs nothing."""
        self.progress(words, max(self.done, 0), self.total)

        def met(call: Any) -> None:
            if call.site.module == self.first.setdefault(words, call.site.module):
                self.done += 1
            self.progress(words, max(self.done, 0), max(self.total, self.done + 1))

        with tap(model, edits=[met], guard=False):
            yield


# ------------------------------------------------------------------------------------------------------ along the text


@dataclass(frozen=True, eq=False)
class Along:
    """What is told of each token, and of the one that could come next."""

    per_token: list[float | None]
    words: str
    guesses: list[Guess]


def _along(lm: Any, plan: Plan, text: str, corpus: list[str] | None) -> Along:
    """The change token by token, of the first window where a text takes several."""
    batch, writes = _first_window(lm, text), choose_metric(lm, "auto")[0].name == "loss"
    before = _reading(lm, batch, writes)
    with applied(lm, plan, corpus=corpus):
        after = _reading(lm, batch, writes)
    if writes:
        change = after[0] - before[0]
        guesses = [] if batch.targets is not None else _guesses(lm.tokenizer, before[1], after[1])
        return Along([number(value) for value in change.tolist()], LOSS_WORDS, guesses)
    if before[0].ndim != 2:
        return Along([], NO_STATES, [])
    turned = (1 - F.cosine_similarity(before[0], after[0], dim=-1)).clamp_min(0)
    return Along([number(value) for value in turned.tolist()], LAST_WORDS, [])


def _first_window(lm: Any, text: str) -> Batch:
    """The first window of a text as a batch of its own."""
    batch = next(each for each in read_corpus(lm, text).batches if 0 in each.places)
    at = batch.places.index(0)
    row = slice(at, at + 1)
    targets = None if batch.targets is None else batch.targets[row]
    return Batch({name: value[row] for name, value in batch.inputs.items()}, (0,), None, targets)


def _reading(lm: Any, batch: Batch, writes: bool) -> tuple[Tensor, Tensor]:
    """Losses [n] and the last token's prediction [v] of a language model; else the last states [n, m] and nothing."""
    outputs = outputs_of(lm, batch, head=writes)
    if writes:
        losses = METRICS["loss"].read(outputs, batch)[0]
        return losses.double().cpu(), exact(outputs.logits[0, -1]).softmax(-1).cpu()
    states = getattr(outputs, "encoder_last_hidden_state", None)
    states = getattr(outputs, "last_hidden_state", None) if states is None else states
    if not isinstance(states, Tensor) or states.ndim != 3 or states.shape[1] != batch.inputs["input_ids"].shape[1]:
        return torch.empty(0), torch.empty(0)
    return states[0].double().cpu(), torch.empty(0)


def _guesses(tokenizer: Any, before: Float[Tensor, "v"], after: Float[Tensor, "v"]) -> list[Guess]:
    """The likeliest next tokens, before or after, the likeliest of either first."""
    count = min(GUESSES, len(before))
    ids = {int(i) for each in (before, after) for i in each.topk(count).indices}
    ranked = sorted(ids, key=lambda i: (-max(float(before[i]), float(after[i])), i))
    return [Guess(token=_named(tokenizer, i), before=float(before[i]), after=float(after[i])) for i in ranked]


def _named(tokenizer: Any, index: int) -> str:
    """A token as it would stand in a text; its piece where it is blank or a part of a character; else its number."""
    try:
        text = tokenizer.decode([index])
        piece = tokenizer.convert_ids_to_tokens([index])[0]
    except (IndexError, KeyError, OverflowError):  # tables of words are often longer than the tokenizer's
        text = piece = None
    if text and text.strip() and "�" not in text:
        return text
    return piece or f"token {index}"


# ------------------------------------------------------------------------------------------------------- small things


def _aligned(values: list[float | None], num_tokens: int) -> list[float | None]:
    """One value a token: those at the beginning that nothing predicts have none."""
    return [None] * (num_tokens - len(values)) + values


def _num_heads(lm: Any, plan: Plan) -> int:
    asked = [step.heads for step in plan.steps] + [step.source for step in plan.steps if isinstance(step, Copy)]
    return len({head for heads in asked for head in lm.spec.select(heads)})


def _corpus_notes(because: str, ask: ExperimentAsk | None = None) -> dict[str, str]:
    """Where values were taken from; and that maps of "after" know of no other corpus than their own text."""
    said = {"corpus": because} if because else {}
    if because and ask is not None and ask.corpus is not None:
        said["after_recording"] = (
            "made without the corpus that was given: its values are from where they are by default"
        )
    return said


def _window_notes(count: int, found: Effect) -> dict[str, str]:
    if count == 1:
        return {}
    return {
        "tokens": f"the first of {count} windows",
        "interval": f"over the {found.num_texts} windows of this text, which overlap",
    }


def _digest(ask: ExperimentAsk, name: str) -> str:
    """The same for the same question about the same model, in every process."""
    return digest("experiment", name, json.dumps(ask.model_dump(mode="json"), sort_keys=True))
