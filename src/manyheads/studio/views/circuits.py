"""The room Circuit: a pair of texts as the model reads it, each head's effect on the answer, and circuits of heads.

Every number is one of `manyheads.circuits`; what stands here are the sentences that come before the numbers, and the
stop of what takes long: `report` is called at every layer of each forward pass, and whatever it raises ends the work.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

from manyheads.base import percent
from manyheads.circuits import (
    Circuit,
    Patching,
    find_circuit,
    logit_attribution,
    measure_circuit,
    metric_of,
    patch,
    path_effects,
    read_answers,
    read_pairs,
)
from manyheads.edits import exact
from manyheads.errors import ManyHeadsError, ModelError, TextError
from manyheads.inputs import Inputs, forward, read
from manyheads.models import LoadedModel
from manyheads.progress import Progress
from manyheads.studio.jobs import ReportProgress
from manyheads.studio.schema import circuits as bodies
from manyheads.studio.views.recording import token_infos
from manyheads.texts import Sinks

EXPECTED = 5  # tokens that may come next
SMALL = 0.01  # of the answer: below it a path is not worth a sentence
NEAR = 0.025  # of the answer: as near a share is called by the name of a fraction
FRACTIONS = {
    1: "all",
    3 / 4: "three quarters",
    2 / 3: "two thirds",
    1 / 2: "half",
    1 / 3: "a third",
    1 / 4: "a quarter",
}
THINGS = {"out": "output", "q": "queries", "k": "keys", "v": "values", "weights": "weights"}
CARRIERS = {
    "out": "{} carries",
    "q": "The queries of {} carry",
    "k": "The keys that {} reads carry",
    "v": "The values that {} reads carry",
    "weights": "The weights of {} carry",
}


def question_of(ask: bodies.PairAsk) -> tuple[str, Any]:
    """The metric and the answers that the filled-in fields stand for. Errors: TextError."""
    if ask.right and ask.wrong:
        return "logit_diff", (ask.right, ask.wrong)
    if ask.wrong:
        raise TextError("there is a wrong answer and no right one: give the right one too, or neither.")
    return ("logit", ask.right) if ask.right else ("kl", None)


def reading(lm: LoadedModel, ask: bodies.PairAsk, *, progress: ReportProgress) -> bodies.PairReading:
    """A pair as the model reads it: tokens, differences, what it expects next. What is wrong is said in the answer."""
    about, trouble, differs, aligned = None, None, list[int](), False
    sides, answers, compared = [bodies.PairSide(tokens=[], next=[])] * 2, list[bodies.AnswerToken](), ""
    does_predict = bool(lm.predicts)
    if not does_predict:
        about, trouble = (
            "model",
            f"{lm.name} reads a text and predicts no token: there is no answer that a head could change.",
        )
    try:
        readings = [read(lm, Inputs(text, long="whole")) for text in (ask.clean, ask.corrupted)]
        listed = [token_infos(side.tokens([0]), Sinks()) for side in readings]
        ids = [side.pieces[0].ids for side in readings]
        sides = [bodies.PairSide(tokens=row, next=[]) for row in listed]
        differs = [place for place, (clean, corrupted) in enumerate(zip(*ids, strict=False)) if clean != corrupted]
        aligned = len(ids[0]) == len(ids[1])
        if not aligned:
            differs = differs[:1] or [min(map(len, ids))]
        if trouble is None:
            about = "texts"
            pairs = read_pairs(lm, ask.clean, ask.corrupted, 1)
            metric_of(lm, pairs, "kl", None, False)  # a masked model's texts need their mask, whatever is asked
            assert pairs.rows is not None
            (batch,), row = pairs.batches, int(pairs.rows[0])
            with watched(lm, progress, "reading both texts", 2):
                chances = [
                    exact(forward(lm, side, guard=False, head=True).outputs.logits[0, row]).softmax(-1).double().cpu()
                    for side in batch
                ]
            sides = [
                bodies.PairSide(
                    tokens=side.tokens,
                    next=[
                        bodies.NextToken(text=_written(lm, token), probability=float(chance[token]))
                        for token in chance.topk(min(EXPECTED, len(chance))).indices.tolist()
                    ],
                )
                for side, chance in zip(sides, chances, strict=True)
            ]
            about = "answers"
            metric, written = question_of(ask)
            compared = "all of the next token’s probabilities (their KL from the clean text’s)"
            if metric != "kl":
                tokens_read = read_answers(lm, pairs, metric, written, False)
                tokens = [int(row[0]) for row in (tokens_read.right, tokens_read.wrong) if row is not None]
                answers = [
                    bodies.AnswerToken(
                        role="wrong" if number else "right",
                        text=_written(lm, token),
                        clean=float(chances[0][token]),
                        corrupted=float(chances[1][token]),
                    )
                    for number, token in enumerate(tokens)
                ]
                compared = " less ".join(f"the logit of “{answer.text}”" for answer in answers)
            about = None
    except ManyHeadsError as error:
        # The library's sentence without arguments of Python, which a page has not, and tokens, which it shows.
        words = str(error).replace(", or read only its first, first_token=True.", ".").removeprefix("the pair: ")
        words = re.sub(r"(first differ at token \d+): clean .* corrupted .*(\. Choose)", r"\1\2", words)
        about, trouble = about or "texts", words[:1].upper() + words[1:]
    return bodies.PairReading(
        model=lm.name,
        predicts=does_predict,
        heads=[str(head) for head in lm.spec.heads],
        clean=sides[0],
        corrupted=sides[1],
        differs=differs,
        aligned=aligned,
        answers=answers,
        compared=compared,
        about=about,
        trouble=trouble,
    )


def effects(lm: LoadedModel, ask: bodies.PatchAsk, *, progress: ReportProgress) -> bodies.HeadEffects:
    """Each head's effect on the answer, as `mh.patch` measures it. Errors: those of `mh.patch`."""
    metric, answers = question_of(ask)
    num_layers = len(lm.spec.sites)
    with watched(lm, progress, "every head of every layer", num_layers + 6):
        result = patch(
            lm, ask.clean, ask.corrupted, metric, answers, ask.what, direction=ask.direction, controls=ask.controls,
            seed=ask.seed,
        )  # fmt: skip
    values = result.by_head.tolist()
    most = max(map(abs, result.control), default=0.0)
    beyond = [str(head) for head, value in zip(result.heads, values, strict=True) if abs(value) > most]
    beyond = beyond if result.control else []
    verdict, then = effect_sentences(result, beyond)
    sites = {(site.stack, site.layer): site for site in lm.spec.sites}
    return bodies.HeadEffects.of(
        result,
        model=ask.model,
        clean=float(result.clean.mean()),
        corrupted=float(result.corrupted.mean()),
        heads=[str(head) for head in result.heads],
        kv_groups=[sites[head.stack, head.layer].kv_head_of(head.index) for head in result.heads],
        effects=values,
        control=list(result.control),
        beyond=beyond,
        verdict=verdict,
        then=then,
    )


def effect_sentences(result: Patching, beyond: Sequence[str]) -> tuple[str, str]:
    """What the largest effect comes to, and what that means beside the controls."""
    top, thing, count = result.ranking()[0], THINGS[result.what], len(beyond)
    value = float(result.by_head[result.heads.index(top)])
    if result.direction == "denoise":
        means = f"With its clean {thing} in the corrupted text, the answer comes that far back"
    else:
        means = f"With its corrupted {thing} in the clean text, that much of the answer is lost"
    sign = "" if value >= 0 else " in the wrong direction"
    first = f"{CARRIERS[result.what].format(top)} {share(abs(value))} of the answer{sign}."
    if not result.control:
        return first, f"{means}. No control was run."
    low, high = decimals(min(result.control)), decimals(max(result.control))
    band = f"{len(result.control)} random heads with an unrelated text’s numbers do {low} to {high}"
    if not beyond:
        stands = "head stands" if result.what == "out" else f"head’s {thing} stand"
        least = f"The largest effect, {decimals(value)} of {top}, is no larger than what any numbers do"
        return f"No {stands} out.", f"{least}: {band}."
    return first, f"{means}. {band}; {count} of {len(result.heads)} heads {'do' if count > 1 else 'does'} more."


def writing(lm: LoadedModel, ask: bodies.OneHeadAsk, *, progress: ReportProgress) -> bodies.HeadWriting:
    """What one head wrote to the answer on both texts, and from which tokens. Errors: those of `logit_attribution`."""
    metric, written = question_of(ask)
    if metric == "kl":
        raise TextError(
            "what a head writes is measured for an answer: give the right one, and preferably the wrong one as well."
        )
    pairs = read_pairs(lm, ask.clean, ask.corrupted, 1)
    tokens = read_answers(lm, pairs, metric, written, False)
    answer = int(tokens.right[0]) if tokens.wrong is None else (int(tokens.right[0]), int(tokens.wrong[0]))
    row = -1 if pairs.rows is None else int(pairs.rows[0])
    with watched(lm, progress, f"what {ask.head} writes", 1):
        result = logit_attribution(lm, [ask.clean, ask.corrupted], answer, row)
    place = result.components.index(str(lm.spec.select(ask.head).heads[0]))
    head = result.components[place]
    clean, corrupted = result.per_text[:, place].tolist()
    ranked = sorted((result.per_text[0, result.components.index(str(entry))] for entry in result.heads), reverse=True)
    parts: list[list[bodies.KeyPart] | None] = [None, None]
    words = (
        f"On the clean text {head} adds {decimals(clean, '+')} logits to the answer, on the corrupted one "
        f"{decimals(corrupted, '+')}."
    )
    try:
        rows = [result.by_key(head, text) for text in (0, 1)]
        parts = [[bodies.KeyPart(weight=entry.weight, value=entry.value) for entry in row] for row in rows]
        strongest = max(rows[0], key=lambda entry: abs(entry.value))
        if abs(strongest.value) >= SMALL:
            words += (
                f" The largest part, {strongest.value:+.2f}, is the value that it read at token {strongest.position}."
            )
    except ModelError as error:
        words += f" {error}"
    return bodies.HeadWriting(
        head=head,
        clean=clean,
        corrupted=corrupted,
        clean_parts=parts[0],
        corrupted_parts=parts[1],
        clean_total=float(result.logit[0]),
        corrupted_total=float(result.logit[1]),
        rank=1 + ranked.index(result.per_text[0, place]),
        num_heads=len(ranked),
        words=words,
        notes=result.notes,
    )


def paths(lm: LoadedModel, ask: bodies.OneHeadAsk, *, progress: ReportProgress) -> bodies.HeadPaths:
    """Every path from an earlier head into one head's queries, keys and values. Errors: those of `path_effects`."""
    metric, answers = question_of(ask)
    with watched(lm, progress, f"whom {ask.head} listens to") as count:
        results = path_effects(
            lm, ask.clean, ask.corrupted, ask.head, None, metric=metric, answers=answers, direction=ask.direction,
            progress=count,
        )  # fmt: skip
    listed = [
        bodies.HeadPath(sender=str(path.senders[0]), channel=path.channel, effect=path.value)  # type: ignore[arg-type]
        for path in results
    ]
    if not listed:
        words = f"{ask.head} is in the first layer: it listens to no head, only to the tokens themselves."
    else:
        top = max(results, key=lambda path: abs(path.value))
        words = f"No earlier head alone tells {ask.head} more than {percent(SMALL)} of the answer."
        if abs(top.value) >= SMALL:
            by = f"{ask.head} listens most to {top.senders[0]}, by its {THINGS[top.channel]}"
            words = f"{by}: {decimals(top.value, '+')} of the answer goes this way."
    notes = {} if not results else results[0].notes
    return bodies.HeadPaths(head=ask.head, direction=ask.direction, paths=listed, words=words, notes=notes)


def alone(lm: LoadedModel, ask: bodies.AloneAsk, *, progress: ReportProgress) -> bodies.CircuitRun:
    """A set of heads run alone, as `measure_circuit` measures it. Errors: HeadError; those of `mh.patch`."""
    metric, answers = question_of(ask)
    with watched(lm, progress, "these heads alone, and random sets of the same size"):
        return _run_of(measure_circuit(lm, ask.clean, ask.corrupted, ask.heads, metric, answers))


def smallest(lm: LoadedModel, ask: bodies.SmallestAsk, *, progress: ReportProgress) -> bodies.CircuitRun:
    """The fewest heads that keep a share of the answer, as `mh.find_circuit` finds them."""
    metric, answers = question_of(ask)
    with watched(lm, progress, "taking heads out, the least needed first", len(lm.spec.heads)) as count:
        return _run_of(find_circuit(lm, ask.clean, ask.corrupted, metric, answers, ask.keep, progress=count))


def _run_of(result: Circuit) -> bodies.CircuitRun:
    words, then = circuit_sentences(result)
    return bodies.CircuitRun.of(
        result,
        heads=[str(head) for head in result.heads],
        costs=result.costs.tolist(),
        kept=result.faithfulness,
        left=result.without,
        random_kept=list(result.random),
        random_left=list(result.random_without),
        num_heads=len(result.spec.heads),
        words=words,
        then=then,
    )


def circuit_sentences(result: Circuit) -> tuple[str, str]:
    """What a set of heads keeps, and how that compares with random sets of the same size."""
    count = len(result.heads)
    if not count:
        return (
            f"No head is needed: without any, {share(result.faithfulness)} of the answer is left.",
            "Embeddings and feed-forward layers do it by themselves.",
        )
    subject = "This head alone keeps" if count == 1 else f"These {count} heads alone keep"
    amount = "nothing" if abs(result.faithfulness) < SMALL / 2 else share(result.faithfulness)
    above = sum(value >= result.faithfulness for value in result.random)
    if not result.random:
        beside = "No random sets were run."
    elif above:
        beside = f"{above} of {len(result.random)} random sets of the same size keep at least as much."
    else:
        beside = f"The best of {len(result.random)} random sets of the same size keeps {share(max(result.random))}."
    left = f"Corrupt {'it' if count == 1 else 'them'} and nothing else, and {share(result.without)} is left"
    remainder = "others can do a part of the same" if result.without > 0.2 else "no others do the same"
    return f"{subject} {amount} of the answer.", f"{beside} {left}: {remainder}."


def share(value: float) -> str:
    """A share of the answer in words, as far as there are words for it: "a third", "44 %", "none", "−12 %"."""
    for number, words in FRACTIONS.items():
        if abs(value - number) <= NEAR:
            return words
    return percent(value)


def decimals(value: float, sign: str = "") -> str:
    """A number with two decimals, and its sign where it is asked for."""
    return f"{value:{sign}.2f}".replace("-", "−")


@contextmanager
def watched(lm: LoadedModel, report: ReportProgress, words: str, passes: int | None = None) -> Iterator[Progress]:
    """Call `report` at every layer of this thread's passes through the model; what it raises ends them.

    Progress is counted in passes, of about `passes`, until the library calls the function that is yielded with its own.
    """
    thread, state = threading.get_ident(), {"done": -1, "total": passes, "own": False}

    def look(module: nn.Module, _: object) -> None:
        if threading.get_ident() != thread:
            return
        if module is lm.model and not state["own"]:
            state["done"] += 1
            if state["total"] is not None:
                state["total"] = max(state["total"], state["done"] + 1)
        report(words, max(state["done"], 0), state["total"])

    def count(done: int, total: int | None) -> None:
        state.update(done=done, total=total, own=True)
        report(words, done, total)

    layers = {site.module.partition("#")[0]: site for site in lm.spec.sites}
    with ExitStack() as stack:
        for module in dict.fromkeys([lm.model, *map(lm.model.get_submodule, layers)]):
            stack.callback(module.register_forward_pre_hook(look).remove)
        yield count


def _written(lm: LoadedModel, token: int) -> str:
    """A token as an answer is written; its piece where it is blank or a part of a character."""
    tokenizer = lm.required_tokenizer
    text = str(tokenizer.decode([token]))
    return text if text and "�" not in text else str(tokenizer.convert_ids_to_tokens([token])[0])
