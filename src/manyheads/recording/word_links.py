"""Links between words: which heads take one word of a text to another, by their exact weights, without any map.

A word is asked for as the text spells it, or as "it#2", the second "it", where there are several: none of them is taken
in silence. Weights are those of `LayerRecord.word_weights`: summed over the pieces of the key word, averaged over those
of the query word. Only the rows and columns of these words are read, but for `telling_link`, which is for short texts.

One text is one case. That a head links two words here says nothing about what it does elsewhere: that is a role.
"""

# device: words and the weights between a few of them are the host's

# pyright: reportMissingTypeStubs=false
# pandas has no types here.

from __future__ import annotations

import difflib
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, overload

import torch
from jaxtyping import Float
from torch import Tensor

from manyheads.base import Json, brief, percent
from manyheads.errors import ShapeError, TextError
from manyheads.heads import Head, HeadLike
from manyheads.recording.layer import LayerRecord
from manyheads.recording.per_head_result import PerHeadResult
from manyheads.spec import CROSS, Layers
from manyheads.texts import Merging, Tokens, Unit, Words, is_space, numbered, readable, word_spans

if TYPE_CHECKING:  # pandas takes half a second to import: only who writes a table waits for it
    import pandas as pd

ORDINALS = (
    "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh", "twelfth"
)  # fmt: skip
NUMBER = re.compile(r"(.+)#([1-9][0-9]{0,8})", re.DOTALL)
LISTED = 6  # occurrences, or words of the text, that an error names
SHOWN = 5  # heads that a printed result names


class HeadLink(NamedTuple):
    """A head gives `weight` of the attention of the word `query` to the word `key`, both as they can be asked for.

    `chance` is the weight if it were spread evenly over all that the word sees. Both are NaN where the head cannot see
    the key from there (a causal mask, a sliding window).
    """

    head: Head
    weight: float
    query: str
    key: str
    chance: float


@dataclass(frozen=True, eq=False)
class HeadLinks(PerHeadResult):
    """The heads of a model by the weight that each gives from one word of one text to another, the heaviest first.

    `links[0]` is the heaviest, `links["L3H1"]` that of a head; `heads` and the rows of the table are in this order.
    `query` or `key` is "" where only the other word was asked for: then each head stands with its strongest word.
    `text` is the text; `because` says what was read, and which layers were left out.
    """

    links: tuple[HeadLink, ...]
    query: str
    key: str
    text: str
    because: str

    @property
    def heads(self) -> tuple[Head, ...]:
        return tuple(link.head for link in self.links)

    @overload
    def __getitem__(self, index: int | HeadLike) -> HeadLink: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[HeadLink, ...]: ...
    def __getitem__(self, index: int | slice | HeadLike) -> HeadLink | tuple[HeadLink, ...]:
        """Errors: HeadError for a head that is not among them; IndexError."""
        return self.links[self.head_place(index)] if isinstance(index, str | Head | tuple) else self.links[index]

    def __len__(self) -> int:
        return len(self.links)

    def __iter__(self) -> Iterator[HeadLink]:
        return iter(self.links)

    def to_pandas(self) -> pd.DataFrame:
        """Columns head, stack, layer, index, query, key, weight, chance."""
        import pandas as pd  # half a second: not for who never asks for a frame

        names = ("query", "key", "weight", "chance")
        return pd.DataFrame({**self.head_columns(), **{name: [getattr(x, name) for x in self] for name in names}})

    def to_dict(self) -> Json:
        """Plain data for JSON: the words, a row for each head, the heaviest first, and what was read."""
        about = {"query": self.query, "key": self.key, "text": self.text}
        return {**about, "heads": self.rows(), "because": self.because}

    def __repr__(self) -> str:
        return brief(str(self))

    def __str__(self) -> str:
        visible = [link for link in self.links if not math.isnan(link.weight)]
        words = f"{self.query or 'any word'!r} -> {self.key or 'any word'!r}".replace("'any word'", "any word")
        one_pair = bool(self.query and self.key)
        heaviest = (
            f"{link.head} {percent(link.weight, 1)}" + ("" if one_pair else f" {link.query!r} -> {link.key!r}")
            for link in visible[:SHOWN]
        )
        even = f"; {percent(visible[0].chance, 1)} if spread evenly" if one_pair and visible else ""
        dots = " ..." if len(visible) > SHOWN else ""
        return f"HeadLinks({words}: {', '.join(heaviest)}{dots} of {len(self.links)} heads, on one text{even})"


def heads_linking(
    stacks: Mapping[str, Layers[LayerRecord]], tokens: Tokens, query: str | None, key: str | None, text: int
) -> HeadLinks:
    """What `Recording.heads_linking` returns, of a recording's stacks and its own tokens."""
    if query is None and key is None:
        raise TextError("no word was given: say from which word, to which, or both, as in heads_linking('it', 'cat').")
    num_texts = tokens.num_texts
    if not -num_texts <= text < num_texts:
        raise ShapeError(f"{text=} is not in this recording: it holds {num_texts} texts, counted from 0.")
    text %= num_texts
    links: list[HeadLink] = []
    lacking: dict[str, str] = {}
    names = ("", "")
    words_of: dict[int, Words] = {}
    written = ""
    for stack, layers in stacks.items():
        for layer in layers:
            is_of_text = layer.site.stack == CROSS and tokens.pieces and tokens.longest == layer.k.shape[2]
            if layer.crosses and not is_of_text:
                lacking[stack] = "what it looks at is not a text."
                break
            key_tokens = tokens if layer.crosses else layer.tokens
            rows, columns = (words_of.setdefault(id(x), Words.of(x)) for x in (layer.tokens, key_tokens))
            place = None if query is None else place_of(rows, query, text)
            key_place = None if key is None else place_of(columns, key, text)
            if isinstance(place, str) or isinstance(key_place, str):
                lacking[stack] = place if isinstance(place, str) else str(key_place)
                break
            if rows is columns and place is not None and place == key_place:
                raise TextError(f"{query!r} and {key!r} are the same word of this text: give two.")
            names = (_name_of(rows, text, place), _name_of(columns, text, key_place))
            written = written or rows.texts[text]
            links += _of_layer(layer, text, rows, columns, place, key_place)
    if not links:
        reasons = [f"{stack}: {reason}" if len(lacking) > 1 else reason for stack, reason in lacking.items()]
        raise TextError(" ".join(reasons) or "this recording holds no layers: record a text first.")
    links.sort(key=lambda link: (math.isnan(link.weight), -link.weight, link.head))
    if math.isnan(links[0].weight):  # no head can see the key from the query, in any layer
        query_name, key_name = names
        if query_name and key_name:
            raise TextError(
                f"no head can look from {query_name!r} to {key_name!r}: each token of this model sees only what is "
                f"before it, or near it. Ask from {key_name!r} to {query_name!r}."
            )
        raise TextError(
            f"no head can look from {query_name!r} at another word: in this text it sees none. Take a later word."
            if query_name
            else f"no head can look at {key_name!r} from another word: in this text none sees it. Take an earlier word."
        )
    because = f"exact weights of one text, {len(links)} heads"
    left_out = "; ".join(f"{stack or 'layers'} left out: {reason}" for stack, reason in lacking.items())
    return HeadLinks(tuple(links), *names, written, because + (f"; {left_out}" if left_out else ""))


def place_of(words: Words, name: str, text: int) -> int | str:
    """The place, among `words.units(text)`, of the word that a name such as "it" or "it#2" asks for. Case counts.

    Where the text has no such word, a message that names the nearest ones. Errors: TextError for a word that is there
    several times, and was asked for without a number: it says which would do.
    """
    units = words.units(text)
    places = [index for index, unit in enumerate(units) if unit.text == name]
    number = None
    if not places and (match := NUMBER.fullmatch(name)):
        spelling, number = match[1], int(match[2])
        places = [index for index, unit in enumerate(units) if unit.text == spelling]
        if places and number > len(places):
            times = "once" if len(places) == 1 else f"{len(places)} times"
            return f"there is no {name!r}: this text has {spelling!r} {times}."
    if number is not None and places:
        return places[number - 1]
    if not places:
        return _absent(name, units)
    if len(places) > 1:
        spelt = words.texts[text]
        options: list[str] = []
        for count, place in enumerate(places[:LISTED], 1):
            near = [unit for unit in units[max(0, place - 2) : place + 3] if not unit.special]
            around = " ".join(spelt[near[0].span[0] : near[-1].span[1]].split()) if near else ""
            options.append(f"{f'{name}#{count}'!r} ({around})")
        more = f" ... {f'{name}#{len(places)}'!r}" if len(places) > LISTED else ""
        raise TextError(f"{name!r} is in this text {len(places)} times. Say which: {', '.join(options)}{more}.")
    return places[0]


def names_of(units: Sequence[Unit]) -> list[str]:
    """For each unit the name that asks for it: its text, with its number where the text has it several times."""
    total, count = Counter(unit.text for unit in units), Counter[str]()
    names: list[str] = []
    for unit in units:
        count[unit.text] += 1
        names.append(f"{unit.text}#{count[unit.text]}" if total[unit.text] > 1 else unit.text)
    return names


class SpacedWord(NamedTuple):
    """A unit of a text as it is asked for (`name`), as people read it, and whether white space stands before it.

    `aside`: a special token, or white space of its own, which a sentence is read without.
    """

    name: str
    text: str
    blank: bool
    aside: bool

    @staticmethod
    def in_sentences(texts: Sequence[str], special: Sequence[bool] = (), quotes: str = '""') -> list[str]:
        """Each text as a sentence names it: in quotes, and with its turn where the same one is there several times.

        Those that are `special` stand without quotes. A sentence that begins with one needs a capital letter.

        >>> SpacedWord.in_sentences(["[CLS]", "John", "and", "John"], [True, False, False, False])
        ['[CLS]', 'the first "John"', '"and"', 'the second "John"']
        """
        total, count = Counter(texts), Counter[str]()
        names: list[str] = []
        for index, text in enumerate(texts):
            count[text] += 1
            name = text if index < len(special) and special[index] else f"{quotes[0]}{text}{quotes[1]}"
            names.append(f"the {_ordinal(count[text])} {name}" if total[text] > 1 else name)
        return names

    @staticmethod
    def place(words: Words, name: str, text: int) -> int | str:
        """The place of the unit that a name asks for, as `place_of` gives it: or a message where there is none."""
        return place_of(words, name, text)


def _ordinal(turn: int) -> str:
    """A turn as a sentence has it: first, second, ..., 13th."""
    if turn <= len(ORDINALS):
        return ORDINALS[turn - 1]
    ending = "th" if 10 < turn % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(turn % 10, "th")
    return f"{turn}{ending}"


def spaced_words(words: Words, text: int = 0, num_units: int | None = None) -> list[SpacedWord]:
    """The units of a text in a row, to draw it as a sentence; of a long one the first `num_units`."""
    units, pieces, end, last = words.units(text)[:num_units], readable(words.tokens, text), 0, -1
    spaced: list[SpacedWord] = []
    for name, unit in zip(names_of(units), units, strict=True):
        begin, stop = unit.span
        if unit.word < 0:
            aside = unit.special or not words.texts[text][begin:stop].strip()
            spaced.append(SpacedWord(name, pieces[unit.tokens[0]], True, aside))
            continue
        between = words.texts[text][end:begin]
        # A word that no token begins in is written with the one before.
        if last >= 0 and (tokenless := between.strip()):
            spaced[last] = spaced[last]._replace(text=spaced[last].text + tokenless)
        last = len(spaced)
        spaced.append(SpacedWord(name, unit.text, any(map(is_space, between)), False))
        end = stop
    if last >= 0 and len(spaced) == len(words.units(text)):  # nor are such words at the end left out
        spaced[last] = spaced[last]._replace(text=spaced[last].text + words.texts[text][end:].strip())
    return spaced


def _name_of(words: Words, text: int, place: int | None) -> str:
    return "" if place is None else names_of(words.units(text))[place]


def telling_link(recording_layers: Iterable[LayerRecord], text: int = 0) -> HeadLink | None:
    """The link between two words of a short text that tells most; None where no two words see each other.

    What tells: weight beyond what the head gives elsewhere in the text, to words as far away and to that word, times
    log2 of the distance in words, as a neighbour is a likely target of any head. It is at least twice the link's
    chance. Marks and special tokens are not words here. The first word of a causal model is not a target: it is where
    heads look that look at nothing. Cost: O(words^2) for each head.
    """
    search, words_of = TellingSearch(), dict[int, Words]()
    for layer in recording_layers:
        if not layer.crosses:
            search.add(layer, words_of.setdefault(id(layer.tokens), Words.of(layer.tokens)), text)
    return search.link


@dataclass(eq=False)
class TellingSearch:
    """The search of `telling_link`, layer by layer; of a long text among the first `num_units` of its words alone."""

    num_units: int | None = None
    link: HeadLink | None = None
    score: float = 0.0

    def add(self, layer: LayerRecord, words: Words, text: int = 0) -> None:
        """Look in one more layer, whose `words` these are."""
        units, window = words.units(text)[: self.num_units], slice(self.num_units)
        weights = layer.word_weights(text=text, words=words, queries=window, keys=window).weights.double().cpu()
        even, count = _even_spread(layer, text, units, units), len(units)
        place = torch.arange(count, device="cpu")
        offset = place[None] - place[:, None]
        # By offset: each row's weight is counted on its diagonal, and its own weight is taken out again.
        diagonal = (offset + count - 1).flatten().expand(len(weights), -1)
        sums = weights.new_zeros(len(weights), 2 * count - 1).scatter_add_(1, diagonal, weights.flatten(1))
        other_cells = (count - offset.abs() - 1).clamp_min(1)
        as_far = (sums.gather(1, diagonal).view_as(weights) - weights) / other_cells
        to_key = (weights.sum(1, keepdim=True) - weights) / max(1, count - 1)
        spoken = torch.tensor([_has_letters(unit) for unit in units], device="cpu")
        telling = (weights - torch.maximum(as_far, to_key)) * offset.abs().clamp_min(1).double().log2()
        looked_at = spoken & (place > 0) if layer.site.causal else spoken
        untold = ~(spoken[:, None] & looked_at[None]) | (even == 0) | (weights < 2 * even)
        telling = telling.masked_fill(untold, -torch.inf)
        score, cell = telling.flatten().max(0)
        if math.isfinite(score) and float(score) > self.score:
            head, query, key = (int(x) for x in torch.unravel_index(cell, telling.shape))
            names = names_of(units)
            chance, weight = (float(x.expand_as(weights)[head, query, key]) for x in (even, weights))
            self.score = float(score)
            self.link = HeadLink(layer.site.heads[head], weight, names[query], names[key], chance)


# ------------------------------------------------------------------------------------------------------- of one layer


def _of_layer(
    layer: LayerRecord, text: int, rows: Words, columns: Words, query: int | None, key: int | None
) -> Iterator[HeadLink]:
    """One link for each head of a layer: between two places, or from (to) one of them to (from) its strongest word."""
    query_units, key_units = rows.units(text), columns.units(text)
    query_names, key_names = names_of(query_units), names_of(key_units)
    queries = slice(None) if query is None else slice(query, query + 1)
    keys = slice(None) if key is None else slice(key, key + 1)
    key_words = columns if layer.crosses else None
    weights = layer.word_weights(text=text, words=rows, key_words=key_words, queries=queries, keys=keys).weights.cpu()
    even = _even_spread(layer, text, query_units[queries], key_units[keys]).expand(weights.shape)
    visible = even > 0
    if query is None or key is None:  # of one side the strongest word: no mark, no special token, not the word itself
        letters = [_has_letters(unit) for unit in (query_units if query is None else key_units)]
        candidates = torch.tensor(letters, device="cpu")  # as the weights and what is visible are
        if rows is columns:
            candidates[query if query is not None else key] = False
        visible = visible & (candidates[:, None] if query is None else candidates[None])
    for index, head in enumerate(layer.site.heads):
        cell = int(weights[index].masked_fill(~visible[index], -1).argmax())
        row, column = divmod(cell, weights.shape[2])
        is_visible = bool(visible[index, row, column])
        yield HeadLink(
            head,
            float(weights[index, row, column]) if is_visible else math.nan,
            query_names[row if query is None else query],
            key_names[column if key is None else key],
            float(even[index, row, column]) if is_visible else math.nan,
        )


def _even_spread(
    layer: LayerRecord, text: int, queries: Sequence[Unit], keys: Sequence[Unit]
) -> Float[Tensor, "h q k"]:
    """The weights between words if every row were spread evenly over the keys that it sees; 0: nothing is seen.

    The first axis has size 1 unless heads see different keys.
    """
    (from_words, rows), (to_words, columns) = numbered(queries), numbered(keys)
    mask = layer.mask_of(text)
    visible = mask.visible(rows, columns)[0].double()
    counts = mask.counts()[:, rows, None] if mask.dense is None else mask.dense[0, :, rows].sum(-1)[..., None].cpu()
    merging = Merging(from_words, to_words)
    merging.add(visible / counts.clamp_min(1), 0)
    return merging.weights


def _has_letters(unit: Unit) -> bool:
    return unit.word >= 0 and any(char.isalnum() for char in unit.text)


def _absent(name: str, units: Sequence[Unit]) -> str:
    """The message for a word that a text does not have, with the nearest ones that it has."""
    spellings = list(dict.fromkeys(unit.text for unit in units if unit.word >= 0))
    parts = [name[begin:end] for begin, end in word_spans(name)]
    if not parts:
        return f"{name!r} is not a word: give one word of the text."
    by_case: dict[str, list[str]] = {}
    for spelling in spellings:
        by_case.setdefault(spelling.casefold(), []).append(spelling)
    if len(parts) > 1 and all(part in spellings for part in parts):
        return f"{name!r} is {len(parts)} words: give one of them, {' or '.join(map(repr, parts[:LISTED]))}."
    close = [name.casefold()] if name.casefold() in by_case else difflib.get_close_matches(name.casefold(), by_case)
    nearest = [spelling for match in close for spelling in by_case[match]][:3]
    if nearest:
        return f"there is no word {name!r} in this text: did you mean {' or '.join(map(repr, nearest))}?"
    more = f" ... ({len(spellings)} different ones)" if len(spellings) > LISTED else ""
    return f"there is no word {name!r} in this text. Its words are {', '.join(map(repr, spellings[:LISTED]))}{more}."
