"""A pattern of one's own as a statistic: a Python function that says where each token should look.

    def to_the_verb(pieces):                      # the text's tokens, as they are written
        verbs = [at for at, piece in enumerate(pieces) if piece.endswith("ed")]
        return [verbs for _ in pieces]            # for each token: a place, several, or None

    mh.find_roles(lm, texts, patterns={"looks at -ed": to_the_verb})

Its score is the mean weight on those places, over the tokens that see one. Beside it: `.uniform`, even spread, and
`.relabelled`, the weight where the same function points once the text's words are shuffled (over the tokens for which
that is elsewhere: a pattern of places alone does not change, and has no such chance level). Cost: the chosen cells.
"""

# device: words, tokens and a pass's answers are the host's

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import index
from typing import Any, cast

import torch
from torch import Tensor

from manyheads.corpora import reason_of
from manyheads.errors import PatternError, StatisticError
from manyheads.own_functions import location
from manyheads.recording.exact_map import cell_weights
from manyheads.statistics.statistic import SHARE, Facts, Finish, PerText, Statistic
from manyheads.texts import Tokens

Target = int | Iterable[int] | None
Pattern = Callable[[list[str]], Sequence[Target]]
Points = list[tuple[int, ...]]  # of one text: for each token the places that it should look at
MOST_CELLS = 1 << 22  # of one text: a pattern names some places a token, not all of them
SHOWN = 48  # characters of a text in an error
SOURCE = "the user's own function"


def pattern_statistics(patterns: Mapping[str, Any]) -> list[Statistic]:
    """Each pattern with its two chance levels. Errors: StatisticError for a name or a function that cannot be used."""
    out: list[Statistic] = []
    for name, pattern in patterns.items():
        if not callable(pattern) or not isinstance(name, str) or not name.strip():
            raise StatisticError(
                f"patterns={{{name!r}: {pattern!r}}}: give a name and a function of a text's tokens that returns, for "
                f"each of them, the places it should look at."
            )
        out += _with_chances(name.strip(), cast(Pattern, pattern))
    return out


def _with_chances(name: str, pattern: Pattern) -> list[Statistic]:
    def plain(tokens: Tokens) -> list[Points]:
        texts = tokens.texts or ("",) * tokens.num_texts
        return [targets(name, pattern, surfaces_of(tokens, text), texts[text]) for text in range(tokens.num_texts)]

    def shuffled(tokens: Tokens) -> list[Points]:
        """Only the rows for which the shuffle makes a difference."""
        order, out = tokens.relabelling, []
        for text, before in enumerate(plain(tokens)):
            surfaces = surfaces_of(tokens, text)
            after = targets(name, pattern, [surfaces[place] for place in order[text, : len(surfaces)].tolist()])
            out.append([new if set(new) != set(old) else () for new, old in zip(after, before, strict=True)])
        return out

    def finish_with(points_of: Callable[[Tokens], list[Points]]) -> Finish:
        """The weight on the places pointed at, over the rows that see one."""

        def finish(facts: Facts) -> PerText:
            points_of_texts, layer = facts.cached(points_of, lambda: points_of(facts.tokens)), facts.layer
            assert layer is not None, "patterns are read from q and k"
            num, den = torch.zeros(len(points_of_texts), layer.q.shape[1], dtype=torch.float64), []
            for text, points in enumerate(points_of_texts):
                rows, keys = _visible_pairs(facts, text, points)
                num[text] = cell_weights(layer, text, rows, keys).sum(-1)
                den.append(len(rows.unique()))
            return PerText(num, torch.tensor(den, dtype=torch.float64)[:, None])

        return finish

    def even(facts: Facts) -> PerText:
        """The share of one key among those that a row sees, summed over the places that the pattern names."""
        num, den = [], []
        for text, points in enumerate(facts.cached(plain, lambda: plain(facts.tokens))):
            rows, _ = _visible_pairs(facts, text, points)
            num.append(float((1 / facts.visible[text, rows].clamp_min(1)).sum()))
            den.append(len(rows.unique()))
        return PerText(*(torch.tensor(part, dtype=torch.float64)[:, None] for part in (num, den)))

    def statistic(suffix: str, meaning: str, finish: Finish, kind: str) -> Statistic:
        asks = frozenset({"tokens"})
        return Statistic(
            name=name + suffix,
            unit="share",
            range=SHARE,
            source=SOURCE,
            meaning=meaning,
            needs=lambda _: (),
            finish=finish,
            kind=kind,
            asks=asks,
        )

    meaning = f"mean weight where {name!r} points"
    return [
        statistic("", meaning, finish_with(plain), "statistic"),
        statistic(".uniform", f"{meaning}, if each row spread its weight evenly", even, "chance"),
        statistic(".relabelled", f"{meaning} once the words are shuffled", finish_with(shuffled), "chance"),
    ]


def targets(name: str, pattern: Pattern, pieces: list[str], text: str = "") -> Points:
    """The places that a pattern returns for one text, checked. Errors: PatternError, whatever the function does."""
    try:
        result: Any = pattern(list(pieces))
    except (Exception, SystemExit) as error:
        words = text or " ".join(pieces)
        short = words if len(words) <= SHOWN else f"{words[: SHOWN - 1]}…"
        raise PatternError(
            f"the pattern {name!r}{location(pattern, error)} failed on text {short!r}: {reason_of(error)}."
        ) from error
    result = result.tolist() if hasattr(result, "tolist") else result
    subject = f"the pattern {name!r}{location(pattern)}"
    is_list = isinstance(result, Sequence) and not isinstance(result, str)
    if not is_list or len(result) != len(pieces):
        form = f"{len(result)} answer{'s' * (len(result) != 1)}" if is_list else f"a {type(result).__name__}"
        raise PatternError(
            f"{subject} gave {form} for {len(pieces)} tokens: return a list with a place, several places or None for "
            f"each token."
        )
    points: Points = []
    for token, answer in enumerate(cast("Sequence[Any]", result)):
        plain = answer.tolist() if hasattr(answer, "tolist") else answer  # whole numbers of NumPy and torch too
        several = () if plain is None else [plain] if hasattr(plain, "__index__") else plain
        try:
            places = tuple(dict.fromkeys(index(place) for place in several))
        except (TypeError, ValueError) as error:  # a float, a word, a tensor of many numbers
            raise PatternError(
                f"{subject} gave {answer!r} for token {token}: return a place (a whole number), several places or None."
            ) from error
        points.append(places)
    for places in points:
        if any(not 0 <= place < len(pieces) for place in places):
            raise PatternError(
                f"{subject} points at {list(places)} in a text of {len(pieces)} tokens: places count from 0 (a "
                f"negative one would be the text's end; leave out what does not exist)."
            )
    if sum(map(len, points)) > MOST_CELLS:
        raise PatternError(
            f"{subject} points at {sum(map(len, points)):,} cells of one text: at most {MOST_CELLS:,}; for a class of "
            f"tokens use class_mass, which costs next to nothing."
        )
    return points


def surfaces_of(tokens: Tokens, text: int) -> list[str]:
    """The text's tokens as they are written; special ones as the tokenizer writes them."""
    ordinary = tokens.ordinary[text, : int(tokens.lengths[text])].tolist()
    return [
        tokens.surface(text, place) if is_ordinary else tokens.pieces[text][place]
        for place, is_ordinary in enumerate(ordinary)
    ]


def _visible_pairs(facts: Facts, text: int, points: Points) -> tuple[Tensor, Tensor]:
    """Rows and keys of the places pointed at, without those that a row cannot see."""
    pairs = [(row, key) for row, keys in enumerate(points) for key in keys]
    rows, keys = torch.tensor(pairs, dtype=torch.long).view(-1, 2).unbind(1)
    mask = facts.reduced.mask
    if mask.dense is not None:
        visible = mask.dense[min(text, len(mask.dense) - 1)].any(0)[rows, keys]
    else:
        visible = (keys >= mask.start[text, rows]) & (keys < mask.stop[text, rows])
    return rows[visible], keys[visible]
