"""Lists of heads of other projects: a file read as a `HeadSplit` of a model.

`head_list_formats.py` knows what is in the files, and writes them. Here a list is held to the model that it is said to
be of: its layers and heads, and its weights where the file names them; query heads become groups; scores become heads
that are kept.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, cast

from manyheads.base import one_of, plural
from manyheads.errors import FileAccessError, HeadError, ModelError
from manyheads.heads import Head, parse_heads
from manyheads.long_context.head_list_formats import HeadList, Place, files_at, list_in
from manyheads.long_context.head_split import HeadSplit, is_split, renumbered, require_share
from manyheads.long_context.split_layer import SplitLayer, file_bytes, join_scores, json_in, layers_of, shape_of
from manyheads.models import LoadedModel

SINK, RECENT = 128, 256  # DuoAttention's windows, where a file says nothing of any
IN_WORDS = {"maximum": "the largest", "mean": "the mean"}


def read_heads(
    path: str | os.PathLike[str],
    lm: LoadedModel,
    *,
    keep: float | None = None,
    threshold: float | None = None,
    join: Literal["maximum", "mean"] | None = None,
) -> HeadSplit:
    """The list of heads in a file or folder, as a split of the key/value heads of `lm`.

    The format is read from the content: any that `HeadSplit.export` writes, or a saved split. Those with a score for
    each head (duo, headkv, lukv) do not say which heads are kept: `keep` is the share of key/value heads, above 0, with
    the largest scores (of equal ones the lower layer, then the lower index), or `threshold` the score from which one
    is kept. A list that `export` wrote says how many were. The other formats name heads, and take neither.

    `join`: how the scores of a group's query heads become one, "maximum" (the default) or "mean". A
    group is kept where a list names any of its query heads. `notes` says all that was chosen, and whether the file
    names its weights: if so, their digest is compared; if not, `weights_hash` is "".
    Errors: FileAccessError for what is damaged, or none of the formats; ModelError for a list of another model;
    HeadError where nothing says which heads are kept, or two things do.
    """
    place = Path(os.path.expanduser(path))
    if join is not None:
        one_of("join", join, IN_WORDS, HeadError)
    files = files_at(place)
    if is_split(files.get("", b"")):
        split = HeadSplit.from_dict(json_in(files[""], place), str(place))
        _refuse_choice(f"{place} is a saved split, which", keep, threshold)
        split = split.numbered_as(lm)
        split.require_model(lm)
        return split
    heads = list_in(files, place)
    if heads.kept is not None:
        _refuse_choice(f"{place} is a list for {heads.format}, which", keep, threshold)
    stack = _stack_of(heads, lm, place)
    numbers = lm.spec.stacks[stack].numbers
    listed_heads, heads = heads, _numbered(heads, numbers, lm, place)
    shapes = [shape_of(site) for site in layers_of(lm, stack)]
    of_query = heads.axis == "query"
    _require_shape(heads, [shape[0 if of_query else 1] for shape in shapes], lm, place)

    how = join or ("mean" if heads.described.get("joined") == "mean" else "maximum")
    scores: dict[Place, float] = {}
    kept_heads: set[Place] = set()
    part: list[Head] = []  # heads that a list names without the others of their group
    for number, (num_heads, num_kv_heads, *_) in enumerate(shapes):
        size = num_heads // max(1, num_kv_heads) if of_query else 1
        for index in range(num_kv_heads):
            group = [(number, head) for head in range(index * size, (index + 1) * size)]
            scores[number, index] = join_scores([heads.scores.get(member, 0.0) for member in group], how)
            if listed := [member for member in group if heads.kept is not None and member in heads.kept]:
                kept_heads.add((number, index))
                part += [Head(stack, *member) for member in listed if len(listed) < size]
    chosen = "the heads that the file names"
    if heads.kept is None:
        kept_heads, chosen = _chosen(heads, scores, keep, threshold, place)

    notes = {"file": f"{heads.format}, {place.name}", "kept": chosen, **heads.notes}
    if heads is not listed_heads:
        notes["layers"] = renumbered(stack, numbers)
    notes["model"] = (
        "the file names its weights, and they are these"
        if heads.described.get("weights_hash")
        else f"the file names no weights: that it is of {lm.name} is known from its shape alone"
    )
    sink, recent = heads.sink, heads.recent
    if sink is None or recent is None:
        sink, recent = heads.described.get("sink", SINK), heads.described.get("recent", RECENT)
        if not heads.described:
            notes["windows"] = f"the file says nothing of them: {SINK} and {RECENT} positions are DuoAttention's"
    grouped = any(shape[0] != shape[1] for shape in shapes)
    if of_query and grouped:
        notes["groups"] = f"the score of a key/value head is {IN_WORDS[how]} of those of its query heads"
    if part:
        names = parse_heads(part, lm.spec.shape)
        notes["part of a group"] = f"kept, although only these of their query heads are listed: {names}"
    layers = tuple(
        SplitLayer(
            *shape,
            kept=tuple((number, index) in kept_heads for index in range(shape[1])),
            scores=tuple(scores[number, index] for index in range(shape[1])),
            query_scores=tuple(
                heads.scores[number, head] for head in range(shape[0] if of_query and heads.whole else 0)
            ),
        )
        for number, shape in enumerate(shapes)
    )
    split = HeadSplit(
        model=heads.described.get("model", lm.name),
        weights_hash=heads.described.get("weights_hash", ""),
        stack=stack,
        layers=layers,
        sink=sink,
        recent=recent,
        by="file",
        unit=heads.unit,
        joined="none" if not grouped else cast("Literal['maximum', 'mean']", how) if of_query else "group",
        notes=notes,
    )
    split.require_model(lm)
    return split


def retrieval_scores(path: str | os.PathLike[str]) -> dict[Head, float]:
    """The mean over trials of each query head's retrieval score, from a file of Retrieval_Head's or HeadKV's.

    A trial's score is the share of a needle's tokens that the head copied, from 0; above 1 in some published files.
    Errors: FileAccessError. Source: Wu et al. 2024, Retrieval Head.
    """
    place = Path(os.path.expanduser(path))
    heads = list_in({"": file_bytes(place)}, place)
    if heads.format != "headkv":
        raise FileAccessError(f"{path} is a list for {heads.format}: retrieval scores are in files for headkv.")
    return {Head("", *head): score for head, score in heads.scores.items()}


# ------------------------------------------------------------------------------------------------- a list and its model


def _stack_of(heads: HeadList, lm: LoadedModel, path: Path) -> str:
    """The stack that a list is of: that of `described`, else the only one, or the one without a name."""
    stacks = lm.spec.stacks
    names = ", ".join(map(repr, stacks)) or "none"
    if (stack := heads.described.get("stack")) is not None:
        if stack not in stacks:
            raise ModelError(f"{path} is for the stack {stack!r}, and the stacks of {lm.name} are {names}.")
        return stack
    if "" not in stacks and len(stacks) != 1:
        raise ModelError(f"{path} does not say which stack it is for, and those of {lm.name} are {names}.")
    return "" if "" in stacks else next(iter(stacks))


def _numbered(heads: HeadList, numbers: Sequence[int], lm: LoadedModel, path: Path) -> HeadList:
    """The list with the numbers that its model gives to the layers that attend, where they are only counted.

    Errors: ModelError for a layer beyond these.
    """
    if "layer_numbers" in heads.described or not heads.described or list(numbers) == list(range(len(numbers))):
        return heads
    if beyond := [layer for layer, _ in [*heads.scores, *(heads.kept or ())] if layer >= len(numbers)]:
        raise ModelError(
            f"{path}: it lists layer {beyond[0]} of {len(numbers)} that attend in {lm.name}: name its own model."
        )
    scores = {(numbers[layer], head): score for (layer, head), score in heads.scores.items()}
    whole = None if heads.kept is None else frozenset((numbers[layer], head) for layer, head in heads.kept)
    return replace(heads, scores=scores, kept=whole, num_layers=None)


def _require_shape(heads: HeadList, counts: list[int], lm: LoadedModel, path: Path) -> None:
    """Errors: ModelError where a list is of other layers or heads than a model has."""
    noun = "query heads" if heads.axis == "query" else "key/value heads"
    attending = [layer for layer, count in enumerate(counts) if count]
    # Some tables end with the last layer that attends.
    fits = heads.num_layers in (None, len(counts), 1 + attending[-1])
    listed_places = [place for place, score in heads.scores.items() if score or place in (heads.kept or ())]
    silent = next((layer for layer, _ in listed_places if layer < len(counts) and layer not in attending), None)
    if fits and silent is not None:
        raise ModelError(
            f"{path} lists heads of layer {silent}, and L{silent} of {lm.name} has no attention, or none that can be "
            f"seen: the layers that attend are {', '.join(f'L{layer}' for layer in attending)}. Name its own model."
        )
    if heads.whole:
        listed: dict[int, set[int]] = {}
        for layer, head in heads.scores:
            listed.setdefault(layer, set()).add(head)
        # A table has a row for a layer without attention as well; it must be empty, or zeros.
        fits = fits and all(
            listed.get(layer, set()) == set(range(count))
            if count
            else not any(heads.scores[layer, head] for head in listed.get(layer, ()))
            for layer, count in enumerate([*counts, *[0] * ((heads.num_layers or 0) - len(counts))])
        )
        described = _counted([len(listed.get(layer, ())) for layer in range(heads.num_layers or 0)], noun)
    elif not fits or heads.num_heads not in (None, max(counts)):
        fits, described = False, f"heads of {heads.num_layers} layers of {heads.num_heads} {noun}"
    else:
        beyond = [place for place in heads.scores if place[0] >= len(counts) or place[1] >= counts[place[0]]]
        fits, described = not beyond, "".join(f"L{layer}H{head}" for layer, head in beyond[:1])
    if not fits:
        raise ModelError(f"{path} lists {described}, and {lm.name} has {_counted(counts, noun)}: name its own model.")


def _counted(counts: list[int], noun: str) -> str:
    """ "28 layers of 16 query heads", "6 layers of 4 or 0 key/value heads"."""
    return f"{plural(len(counts), 'layer')} of {' or '.join(map(str, dict.fromkeys(counts))) or 'no'} {noun}"


# ------------------------------------------------------------------------------------------------- which heads are kept


def _refuse_choice(of: str, keep: float | None, threshold: float | None) -> None:
    if keep is not None or threshold is not None:
        raise HeadError(f"{of} says itself which heads keep everything: leave keep and threshold out.")


def _chosen(
    heads: HeadList, scores: Mapping[Place, float], keep: float | None, threshold: float | None, path: Path
) -> tuple[set[Place], str]:
    """The key/value heads that are kept, and why in words. Errors: HeadError."""
    if keep is not None and threshold is not None:
        raise HeadError(f"keep={keep} and threshold={threshold} both say which heads are kept: give one of them.")
    if threshold is not None:
        if not math.isfinite(threshold):
            raise HeadError(f"threshold={threshold} is not a finite number.")
        if not (reached := {head for head, score in scores.items() if score >= threshold}):
            low, high = min(scores.values()), max(scores.values())
            raise HeadError(f"threshold={threshold:g} is reached by no score of {path}: they are {low:g} to {high:g}.")
        return reached, f"scores of {threshold:g} or more"
    if keep is not None:
        require_share(keep)
    if keep is None and "kept" not in heads.described:
        raise HeadError(
            f"{path} has a score for each head, and does not say which keep everything: give the share of key/value "
            f"heads that do, as keep=0.5, or the score from which one does, as threshold=0.1."
        )
    count = heads.described["kept"] if keep is None else math.floor(keep * len(scores) + 0.5)
    largest = sorted(scores, key=lambda head: (-scores[head], head))[:count]
    why = f"the {len(largest)} largest of {len(scores)} scores"
    # A file that says less than a choice needs: what place alone decided is no evidence, and is counted.
    tied = [head for head, score in scores.items() if largest and score == scores[largest[-1]]]
    if outside := len({*tied} - {*largest}):
        why += f"; {len(tied)} of them are equal at the end, and {outside} were left out by their place alone"
    return {*largest}, f"{why}; of equal ones the lower layer, then index"
