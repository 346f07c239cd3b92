"""A treebank's sentence as a text and its words: where each stands in the text, and on which it hangs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from conllu import Token

from manyheads.errors import TextError
from manyheads.recording.tokens import ROOT
from manyheads.recording.tokens import GoldWord

NONE = "_"


class Surface(NamedTuple):
    """A stretch of the text, and the words in it: one, or several that share it whole."""

    form: str
    words: int
    blank: bool


def read_words(tokens: Sequence[Token], text: str | None) -> tuple[str, tuple[GoldWord, ...]]:
    """The sentence's text and words. Where no text is given, it is made of the forms and SpaceAfter=No.

    "don't" over "do" and "n't" is divided between them; the words of "im" (German "in" and "dem") share its span.
    Errors: TextError for words that are not in the text in order, that are not numbered 1, 2, 3, or are no tree.
    """
    words = [token for token in tokens if isinstance(token["id"], int)]
    for number, word in enumerate(words, 1):
        if word["id"] != number:
            raise TextError(f"token {word['id']} comes where token {number} was to come.")
        if "deprel" not in word:
            raise TextError(f"token {number} has {len(word)} columns: a relation is in the eighth.")
    surfaces = list(_surfaces(tokens))
    if not words:
        raise TextError("it has no word, only what is not in its text.")
    if not text:
        text = "".join(each.form + " " * each.blank for each in surfaces).rstrip()
    heads = read_heads(words)
    return text, tuple(
        GoldWord(begin, end, _given(word["upos"]), head, _given(word["deprel"]))
        for (begin, end), word, head in zip(_spans(surfaces, text), words, heads, strict=True)
    )


def read_heads(words: Sequence[Token]) -> list[int]:
    """The words' heads, counted from 0; all are ROOT where the column is empty. Errors: TextError for no tree."""
    given = [word["head"] for word in words]
    if all(head is None for head in given):
        return [ROOT] * len(words)
    heads = []
    for number, head in enumerate(given, 1):
        if head is None or not 0 <= head <= len(words) or head == number:
            told = "no head" if head is None else f"head {head}"
            raise TextError(f"token {number} has {told}, but each of the {len(words)} words hangs on another or on 0.")
        heads.append(head - 1)
    safe = {ROOT}  # from these, heads lead to the root
    for start in range(len(words)):
        path, word = set(), start
        while word not in safe:
            if word in path:
                raise TextError(f"token {word + 1} hangs on itself, by way of other words: that is no tree.")
            path.add(word)
            word = heads[word]
        safe |= path
    return heads


def misc_value(token: Token, key: str) -> str | None:
    """What the last column says under a name (`Entity`, `SpaceAfter`), where anything."""
    misc = token.get("misc") or ""
    if key not in misc:
        return None
    return next((part[len(key) + 1 :] for part in misc.split("|") if part.startswith(f"{key}=")), None)


def _surfaces(tokens: Sequence[Token]) -> Iterator[Surface]:
    """What the text shows: words, and ranges of words in place of those that they cover. Empty nodes are not shown."""
    index = 0
    while index < len(tokens):
        token, place = tokens[index], tokens[index]["id"]
        index += 1
        if isinstance(place, int):
            yield Surface(token["form"], 1, misc_value(token, "SpaceAfter") != "No")
        elif place is None:
            raise TextError(f"a token {token['form']!r} has no number.")
        elif place[1] == "-":
            first, _, last = place
            count = last - first + 1  # as a damaged range says it: any number at all
            words = [each for each in tokens[index:] if isinstance(each["id"], int)][: max(0, count)]
            numbers = [each["id"] for each in words]
            if not words or len(words) != count or numbers != [*range(first, first + len(words))]:
                raise TextError(f"the words of {first}-{last} {token['form']!r} do not follow it.")
            while index < len(tokens) and tokens[index]["id"] != last:
                index += 1
            index += 1
            blank = misc_value(token, "SpaceAfter") != "No"
            forms = [each["form"] for each in words]
            if "".join(forms) == token["form"]:
                yield from (Surface(form, 1, False) for form in forms[:-1])
                yield Surface(forms[-1], 1, blank)
            else:
                yield Surface(token["form"], len(words), blank)


def _spans(surfaces: Sequence[Surface], text: str) -> Iterator[tuple[int, int]]:
    """Each word's characters. White space counts on neither side: texts have it where forms do not, and otherwise."""
    places = [place for place, char in enumerate(text) if not char.isspace()]
    letters = "".join(text[place] for place in places)
    at = number = 0
    for form, words, _ in surfaces:
        bare = "".join(form.split())
        if not bare or not letters.startswith(bare, at):
            there = text[places[at] :][:20] if at < len(places) else ""
            raise TextError(f"token {number + 1} {form!r} is not what the text goes on with ({there!r}).")
        span = places[at], places[at + len(bare) - 1] + 1
        yield from (span for _ in range(words))
        at, number = at + len(bare), number + words
    if at < len(places):
        raise TextError(f"the text goes on after the last token ({text[places[at] :][:20]!r}).")


def _given(value: str) -> str:
    return "" if value == NONE else value
