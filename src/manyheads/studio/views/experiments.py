"""Experiments: what a plan changes on a text, token by token, beside random heads; a head's worth; pruned checkpoints.

The page wants one answer, with a sentence, tokens and guesses beside the numbers. The numbers themselves are those of
`mh.effect`; two passes of our own, one of them under `mh.applied`, read what is drawn along the text. Heads that are
removed for good are written as a checkpoint into the workspace's own folder, and nowhere else.

Cost: 6 + `controls` forward passes over the text, of a language model `controls` more, and of a model that embeds 4, 2
of them over short sentences; of a pruning a second copy of the model, and some 10 s for the fresh process that tries
it. `progress` is called at every layer of each pass, so whatever it raises stops the work within a layer; the model is
as it was, for `mh.effect` and `mh.applied` leave it so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Float64
from torch import Tensor, nn

from manyheads.corpora import EXAMPLE_SENTENCES
from manyheads.edits import METRICS, Prepared, applied, choose_metric, exact, logits_of, prepare, read_under
from manyheads.errors import FileAccessError, HeadError, StatisticError
from manyheads.inputs import Batch, forward, read
from manyheads.interventions import costs_of, effect, prune_heads, verdict
from manyheads.interventions.effects import CONTROLS, random_plans
from manyheads.measurement import spelled
from manyheads.models import AttentionCall, LoadedModel, tap
from manyheads.models.weights import STOCK
from manyheads.plan import Ablate, AblationKind, Copy, Plan
from manyheads.roles.compare import head_diversity
from manyheads.studio.jobs import ReportProgress
from manyheads.studio.schema import experiments as bodies
from manyheads.studio.schema.recordings import EffectVerdict, Worth
from manyheads.studio.state.recordings import corpus_of, plan_of, recording_id
from manyheads.studio.state.workspace import digest
from manyheads.studio.views.effect_words import headline, sentence
from manyheads.studio.views.recording import token_infos
from manyheads.texts import Sinks

GUESSES = 8  # the likeliest next tokens before, and the likeliest after: what fits beside a text
OWN_PASSES = 2
# Tokens; rows of a longer text that heads are compared by, or the dial takes seconds.
LONG_TEXT, ROWS_OF_LONG = 256, 128
LOSS_WORDS = "each token's loss, after less before, in nats: the first token is not predicted"
LAST_WORDS = "how far each token's last state turned: 1 - cosine, from 0 (as it was) to 2 (turned round)"
NO_STATES = "this model returns no state for each token, so there is nothing to tell token by token"
EVIDENCE = "chosen by hand in the studio"


def run(lm: LoadedModel, ask: bodies.ExperimentAsk, *, progress: ReportProgress) -> bodies.Experiment:
    """Carry out a plan on a text and measure what it changed. `progress(words, done, total)` may raise, to stop.

    Errors: those of `mh.effect` and of plans (PlanError, HeadError, TextError, StatisticError, ModelError).
    """
    plan = plan_of(ask.plan)
    # Before anything is read: a plan with heads that the model does not have fails at once.
    for step in plan.on_heads.values():
        for heads in [step.heads, *([step.source] if isinstance(step, Copy) else [])]:
            lm.spec.select(heads)
    corpus, because = corpus_of(plan, ask.text, ask.corpus)
    reading = read(lm, ask.text)
    embeds = choose_metric(lm, "auto")[0].name == "cosine"
    counter = PassCounter(progress, len(reading.groups()) * (4 + ask.controls) + OWN_PASSES)
    predicts = choose_metric(lm, "auto")[0].name == "loss" and not lm.writes_apart
    if predicts and plan.on_heads:
        counter.total += ask.controls  # once more, over the text whose end is guessed
    if embeds:
        counter.total += 2 * (len(reading.groups()) + len(read(lm, EXAMPLE_SENTENCES).groups()))
    if corpus is not None:  # read for the effect, and again for what is shown beside it
        counter.total += 2 * len(read(lm, corpus).groups())
    with counter.passes(lm.model, "with these heads, without them, and without random ones"):
        outcome = effect(lm, plan, ask.text, corpus=corpus, metric=ask.metric, controls=ask.controls, seed=ask.seed)
    with counter.passes(lm.model, "token by token"):
        prepared = prepare(lm, plan, corpus)[0]
        per_token, per_token_words, guesses, likeliest = _along(lm, prepared, ask.text)
    control_guesses: list[float] = []
    # Of a plan that changes nothing its random sets change nothing either.
    if likeliest is not None and outcome.control and "unchanged" not in outcome.notes:
        with counter.passes(lm.model, "what random heads do to the guess"):
            control_guesses = _guessed_under(lm, plan, ask, corpus, likeliest)
    with counter.passes(lm.model, "how different the heads look"):
        longest = max(len(piece.ids) for piece in reading.pieces)
        diversity = _diversity_change(lm, prepared, ask.text, None if longest <= LONG_TEXT else ROWS_OF_LONG)
    neighbours: list[bodies.Neighbour] = []
    if embeds:
        with counter.passes(lm.model, "beside example sentences"):
            neighbours = _neighbours(lm, prepared, ask.text)
    notes = {**outcome.notes, **({"corpus": because} if because else {})}
    if because and ask.corpus is not None:
        # A recording's id is made of model, text and plan: it cannot know of a corpus that this request alone gives.
        notes["after_recording"] = (
            "made without the corpus that was given: its values are from where they are by default"
        )
    num_windows, num_tokens = len(reading.pieces), len(reading.pieces[0].ids)
    if num_windows > 1:
        notes["tokens"] = f"the first of {num_windows} windows"
        notes["interval"] = f"over the {outcome.num_texts} windows of this text, which overlap"
    first, beside = headline(outcome, lm.spec, guesses, control_guesses, neighbours)
    return bodies.Experiment.of(
        outcome,
        # The same id for the same request about the same model, in every process.
        id=digest("experiment", lm.name, json.dumps(ask.model_dump(mode="json"), sort_keys=True)),
        name=ask.name or str(plan),
        model=ask.model,
        text=ask.text,
        plan=ask.plan,
        plan_words=str(plan),
        tokens=token_infos(reading.tokens([0]), Sinks()),
        per_token=[None] * (num_tokens - len(per_token)) + per_token,  # nothing predicts the first token
        per_token_words=per_token_words,
        guesses=guesses,
        neighbours=neighbours,
        diversity=diversity,
        verdict=EffectVerdict.of(verdict(outcome)),
        control_guesses=control_guesses,
        headline=first,
        beside=beside,
        before_recording=recording_id(ask.model, ask.text),
        after_recording=recording_id(ask.model, ask.text, ask.plan),
        words=sentence(outcome),
        notes=notes,
    )


def worth(
    lm: LoadedModel, recording: str, head: str, text: str, kind: AblationKind, *, progress: ReportProgress
) -> Worth:
    """The effect on a text of ablating one head, as `kind` says, beside random heads.

    Cost: 2 + `CONTROLS` forward passes. Errors: HeadError unless `head` is one head of the model; as `run`.
    """
    selection = lm.spec.select(head)
    if len(selection) != 1:
        raise HeadError(f"{head!r} is {len(selection)} heads of {lm.name}: name one, as in 'L3H7'.")
    plan = Plan(Ablate(str(selection), kind=kind))
    corpus, because = corpus_of(plan, text)
    counter = PassCounter(progress, len(read(lm, text).groups()) * (2 + CONTROLS))
    if corpus is not None:
        counter.total += len(read(lm, corpus).groups())
    with counter.passes(lm.model, f"with {selection}, without it, and without random heads"):
        outcome = effect(lm, plan, text, corpus=corpus, controls=CONTROLS)
    notes = {**outcome.notes, **({"corpus": because} if because else {})}
    ranked = EffectVerdict.of(verdict(outcome))
    return Worth.of(
        outcome,
        head=str(selection),
        recording=recording,
        kind=kind,
        words=sentence(outcome),
        verdict=ranked,
        notes=notes,
    )


def save_pruned(lm: LoadedModel, ask: bodies.PruningAsk, folder: Path, *, progress: ReportProgress) -> bodies.Pruning:
    """Remove heads and save the smaller model as `folder / ask.name`. `progress` may raise: then nothing is written.

    Errors: FileAccessError for a name that would leave the folder, or that exists already; HeadError for heads that
    cannot be removed, with the nearest ones that can; ModelError.
    """
    target = folder / ask.name
    # The request's type allows plain names only; but a link that somebody put into the folder leads out of it as well.
    if target.resolve().parent != folder.resolve() or target.is_symlink():
        raise FileAccessError(
            f"cannot write {ask.name!r}: it would not be in {folder}. Give a plain name of a new folder."
        )
    if target.exists():
        raise FileAccessError(f"{ask.name} already exists: give another name, or remove that folder first.")
    heads = lm.spec.select(ask.heads)
    progress(f"removing {heads} and checking what is left", 0, 2)
    pruned = prune_heads(lm, str(heads), empty_layers=ask.empty_layers)
    progress(f"saving {ask.name}, and loading it in a fresh process", 1, 2)
    saved = pruned.save(target, evidence=EVIDENCE)
    before, after = costs_of(pruned).parameters
    stock = saved.form == STOCK
    loads = "stock transformers loads it as it is"
    return bodies.Pruning.of(
        ask,
        folder=str(saved.folder),
        heads=[str(head) for head in heads],
        parameters_before=before,
        parameters_after=after,
        stock=stock,
        words=(
            f"Equal to {lm.name} with {heads} at zero, to {max(pruned.error, saved.error):.1e} of the largest output: "
            f"{loads if stock else 'mh.load reads it, and its folder zeroed loads anywhere'}, for {saved.because}."
        ),
    )


@dataclass(eq=False)
class PassCounter:
    """Counts forward passes, and calls `progress` at every layer of each."""

    progress: ReportProgress
    total: int
    done: int = -1  # passes before the one under way
    first: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def passes(self, model: nn.Module, words: str) -> Iterator[None]:
        """Count the passes of this thread through the model. An edit that edits nothing costs nothing."""
        self.progress(words, max(self.done, 0), self.total)

        def on_layer(call: AttentionCall) -> None:
            # A pass begins where the layer that came first is called again: its number of layers is not known here.
            if call.site.module == self.first.setdefault(words, call.site.module):
                self.done += 1
            self.progress(words, max(self.done, 0), max(self.total, self.done + 1))

        with tap(model, edits=[on_layer], guard=False):
            yield


def _along(
    lm: LoadedModel, plan: Prepared, text: str
) -> tuple[list[float | None], str, list[bodies.Guess], int | None]:
    """The change of each token in a text's first window, the words for it, the next token's likeliest guesses, and the
    number of the one that was likeliest before."""
    batch = first_text(lm, text)
    writes = choose_metric(lm, "auto")[0].name == "loss"
    before, likely_before = token_values(lm, batch, writes)
    with applied(lm, plan):
        after, likely_after = token_values(lm, batch, writes)
    if writes:
        change = (after - before).tolist()
        if batch.targets is not None:
            return change, LOSS_WORDS, [], None
        # The likeliest next tokens, before or after, the likeliest of either first; the smaller number where two tie.
        likely = {
            index: (float(likely_before[index]), float(likely_after[index]))
            for probabilities in (likely_before, likely_after)
            for index in probabilities.topk(min(GUESSES, len(likely_before))).indices.tolist()
        }
        guesses = [
            bodies.Guess(token=spelled(lm.required_tokenizer, index), before=before, after=after)
            for index, (before, after) in sorted(likely.items(), key=lambda item: (-max(item[1]), item[0]))
        ]
        return change, LOSS_WORDS, guesses, int(likely_before.argmax())
    if before.ndim != 2:
        return [], NO_STATES, [], None
    turned = (1 - F.cosine_similarity(before, after, dim=-1)).clamp_min(0)
    return turned.tolist(), LAST_WORDS, [], None


def _guessed_under(
    lm: LoadedModel, plan: Plan, ask: bodies.ExperimentAsk, corpus: list[str] | None, token: int
) -> list[float]:
    """The probability of a next token under each random set of `effect`'s controls."""
    batch = first_text(lm, ask.text)
    shares: list[float] = []
    prepared, _ = prepare(lm, random_plans(plan, lm.spec, ask.controls, ask.seed), corpus)
    for drawn in prepared.plans:
        with applied(lm, Prepared((drawn,), prepared.computed)):
            shares.append(float(token_values(lm, batch, True)[1][token]))
    return shares


def first_text(lm: LoadedModel, text: str) -> Batch:
    """The first window of a text, alone."""
    batch = next(batch for batch in read(lm, text).batches() if 0 in batch.places)
    index = batch.places.index(0)
    return batch.some(slice(index, index + 1))


def _diversity_change(lm: LoadedModel, plan: Prepared, text: str, rows: int | None) -> bodies.DiversityChange:
    """How different the heads look before and under a plan, in the first stack; nothing where that cannot be said."""
    stack = "" if "" in lm.spec.stacks else next(iter(lm.spec.stacks))
    silent = {head for step in plan.plans[0].steps if isinstance(step, Ablate) for head in lm.spec.select(step.heads)}
    heard = [sum(head not in silent for head in site.heads) for site in lm.spec.sites if site.stack == stack]
    if silent and max(heard) < 2:
        words = "at most one head of each layer speaks: there are no two maps to compare"
        return bodies.DiversityChange(before=None, after=None, words=words)
    try:
        before = head_diversity(lm, text, rows=rows, stack=stack)
        with applied(lm, plan):
            after = head_diversity(lm, text, rows=rows, stack=stack)
    except StatisticError as error:  # one head in each layer, or a text of one token
        return bodies.DiversityChange(before=None, after=None, words=str(error))
    words = "how different the heads of a layer look: 0, all look at the same words; 1, no two at the same"
    if silent:
        words += "; heads set to zero still have maps, and are counted"
    return bodies.DiversityChange(before=before.value, after=after.value, words=f"{words} ({after.because})")


def _neighbours(lm: LoadedModel, plan: Prepared, text: str) -> list[bodies.Neighbour]:
    """Example sentences, the nearest before first, with their cosines before and under the plan; [] without states."""

    def cosines() -> list[float]:
        mean = embeddings(lm, text).mean(0)  # over the text's windows
        return F.cosine_similarity(embeddings(lm, EXAMPLE_SENTENCES), mean[None], dim=-1).tolist()

    try:
        before = cosines()
        with applied(lm, plan):
            after = cosines()
    except StatisticError:  # no states to make an embedding of
        return []
    rows = sorted(zip(EXAMPLE_SENTENCES, before, after, strict=True), key=lambda row: -row[1])
    return [bodies.Neighbour(sentence=sentence, before=cosine, after=then) for sentence, cosine, then in rows]


def embeddings(lm: LoadedModel, texts: str | Sequence[str]) -> Float64[Tensor, "n m"]:
    """The embedding of each text, or of each window of a long one, in order. Errors: StatisticError without states."""
    rows: dict[int, Tensor] = {}
    for batch in read(lm, texts).batches():
        rows |= dict(zip(batch.places, read_under(lm, batch, METRICS["cosine"]).reading.double().cpu(), strict=True))
    return torch.stack([rows[place] for place in sorted(rows)])


def token_values(lm: LoadedModel, batch: Batch, writes: bool) -> tuple[Tensor, Tensor]:
    """Losses [n] and the last token's prediction [v] of a language model; else the last states [n, m] and nothing."""
    return values_of(forward(lm, batch, guard=False, head=writes).outputs, batch, writes)


def values_of(outputs: object, batch: Batch, writes: bool) -> tuple[Tensor, Tensor]:
    """The same of what a pass returned."""
    if writes:
        losses = METRICS["loss"].read(outputs, batch)[0]
        return losses.double().cpu(), exact(logits_of(outputs, "loss", 3)[0, -1]).softmax(-1).cpu()
    # An encoder-decoder's text is its encoder's: the decoder's last states belong to other tokens.
    states = getattr(outputs, "encoder_last_hidden_state", None)
    states = getattr(outputs, "last_hidden_state", None) if states is None else states
    if not isinstance(states, Tensor) or states.ndim != 3 or states.shape[1] != batch.inputs["input_ids"].shape[1]:
        return torch.empty(0, device="cpu"), torch.empty(0, device="cpu")
    return states[0].double().cpu(), torch.empty(0, device="cpu")
