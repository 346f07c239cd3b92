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
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from manyheads.errors import FileAccessError, HeadError
from manyheads.interventions import METRICS, Effect, applied, choose_metric, costs_of, effect, prune_heads, read_corpus
from manyheads.interventions.effects.effect import CONTROLS
from manyheads.interventions.effects.metrics import Batch, exact, outputs_of
from manyheads.models import batches, read_texts, tap, tokens_of
from manyheads.models.weights.compact_form import STOCK
from manyheads.plan import Ablate, Average, Copy, Plan, Scale, SkipOutputProjection, Step
from manyheads.recording import Sinks
from manyheads.statistics.head_table import number
from manyheads.studio.jobs import Say
from manyheads.studio.schema.experiments import Experiment, ExperimentAsk, Guess, Pruning, PruningAsk
from manyheads.studio.schema.recordings import Worth
from manyheads.studio.state.plans import corpus_of, plan_of
from manyheads.studio.state.recordings import recording_id
from manyheads.studio.state.workspace import digest
from manyheads.studio.views.recording import told_tokens

__all__ = ["run", "worth", "sentence"]


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


# ---------------------------------------------------------------------------------------------------------------------
# What a plan changed, in one plain sentence, with the random heads beside it: a number alone invites over-reading.


ROUNDING = 1e-9  # a change below it is that of float32 sums in another order
MOST_STEPS = 3  # that are told one by one; a longer plan is counted
INSTEAD = {
    "mean": "held at the mean output",
    "resample": "as on another text",
    "first": "looking at the first token alone",
}


def sentence(found: Any, num_heads: int) -> str:
    """An `Effect` for people. `num_heads`: how many the plan touches, and so does each random set."""
    if "unchanged" in found.notes and found.change == 0:
        return f"{_done(found.plan)}, nothing changes: {found.notes['unchanged']} has no effect here."
    if abs(found.change) < ROUNDING:
        return f"{_done(found.plan)}, nothing changes (what differs is rounding); {_beside(found, num_heads)}."
    return f"{_done(found.plan)}, {_change(found)}; {_beside(found, num_heads)}."


def _done(plan: Plan) -> str:
    """What was done, as the beginning of a sentence."""
    if len(plan.steps) > MOST_STEPS:
        return f"After {len(plan.steps)} steps"
    said = " and ".join(map(_step, plan.steps))
    return said[:1].upper() + said[1:]


def _step(step: Step) -> str:
    match step:
        case Ablate(kind="zero"):
            return f"without {step.heads}"
        case Ablate():
            return f"with {step.heads} {INSTEAD[step.kind]}"
        case Scale():
            return f"with {step.heads} {step.factor:g} times as loud"
        case Average():
            return f"with one mean map for the heads of {step.heads}"
        case Copy():
            return f"with the weights of {step.source} in {step.heads}"
        case SkipOutputProjection():
            return f"without the output projection of {step.layer}"


def _change(found: Any) -> str:
    size = f"{abs(found.change):.3g}"
    if found.metric == "cosine":
        return f"the text's embedding turns by {found.change:.3g} (1 - cosine)"
    if found.metric == "kl":
        return f"what is predicted moves by {found.change:.3g} nats a token (KL divergence)"
    verb = "rises" if found.change > 0 else "falls"
    if found.metric == "loss":
        levels = f", from {found.before:.4g} to {found.after:.4g}" if found.before is not None else ""
        return f"the loss {verb} by {size} nats a token{levels}"
    return f"{found.metric} {verb} by {size}{f' {found.unit}' if found.unit else ''}"


def _beside(found: Any, num_heads: int) -> str:
    """The control in words."""
    if not found.control:
        return f"nothing to compare it with ({found.notes['control']})"
    count = len(found.control)
    whole = all(isinstance(step, SkipOutputProjection) for step in found.plan.steps)
    sets = f"{count} random {'layer' if whole else 'head'}{'s' * (count != 1)}"
    if num_heads != 1 and not (whole and len(found.plan.steps) == 1 and "," not in found.plan.steps[0].heads):
        sets = f"{count} random set{'s' * (count != 1)} of as many {'layers' if whole else 'heads'}"
    span = " to ".join(dict.fromkeys(f"{each:.3g}" for each in (min(found.control), max(found.control))))
    above = sum(abs(each) >= abs(found.change) for each in found.control)
    which = f"{above or 'none'} of them change{'s' * (above < 2)} it as much or more, up or down"
    return f"{sets}: {span} ({which})"


# ---------------------------------------------------------------------------------------------------------------------
# Heads removed for good, written as a checkpoint into the workspace's own folder, and nowhere else.
#
# Cost: `mh.prune_heads` and its `save`: a second copy of the model, and some 10 s for the fresh process that tries it.


EVIDENCE = "chosen by hand in the studio"


def save_pruned(lm: Any, ask: PruningAsk, folder: Path, *, progress: Say) -> Pruning:
    """Remove heads and save what is left as `folder / ask.name`. `progress` may raise: then nothing is written.

    Errors: FileAccessError for a name that would leave the folder, or where something else than an earlier save of ours
    stands; HeadError for heads that cannot go, with the nearest that can; ModelError.
    """
    target = _inside(folder, ask.name)
    if target.exists():
        raise FileAccessError(f"{ask.name} is there already: give another name, or remove that folder first.")
    asked = lm.spec.select(ask.heads)
    progress(f"removing {asked} and checking what is left", 0, 2)
    pruned = prune_heads(lm, str(asked), empty_layers=ask.empty_layers)
    progress(f"saving {ask.name}, and loading it in a fresh process", 1, 2)
    saved = pruned.save(target, evidence=EVIDENCE)
    before, after = costs_of(pruned).parameters
    stock = saved.form == STOCK
    loads = (
        "stock transformers loads it as it is" if stock else "mh.load reads it, and its folder zeroed loads anywhere"
    )
    return Pruning(
        folder=str(saved.folder),
        model=ask.model,
        heads=[str(head) for head in asked],
        parameters_before=before,
        parameters_after=after,
        stock=stock,
        words=(
            f"Equal to {lm.name} with {asked} at zero, to {max(pruned.error, saved.error):.1e} of the largest output: "
            f"{loads}, for {saved.because}."
        ),
    )


def _inside(folder: Path, name: str) -> Path:
    """`folder / name`, resolved. Raises FileAccessError unless that lies right in the folder."""
    target = folder / name
    if target.resolve().parent != folder.resolve() or target.is_symlink():
        raise FileAccessError(
            f"cannot write {name!r}: it would not lie in {folder}. Give a plain name of a new folder."
        )
    return target
