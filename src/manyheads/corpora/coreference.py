"""Who is meant by which words: the `Entity=` of CoNLL-U files, as GUM and CorefUD write it.

`# global.Entity = GRP-etype-infstat-...` names the fields of an opening bracket; GRP (CorefUD: eid) is the entity.
`(7-abstract-new(3-abstract-giv)` opens a mention of 7 and, inside it, one of 3 that is this word alone; `7)6)` closes
two. `(12[1/2]-...` is the first of a mention's two parts. Bridging and split antecedents stand elsewhere and are left
out. Source: Nedoluzhko et al. 2022, CorefUD 1.0; Zeldes 2017, the GUM corpus.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from manyheads.errors import TextError
from manyheads.recording.tokens import GoldWord
from manyheads.recording.tokens import Mention

ENTITY_FIELDS = ("GRP", "eid")
BRACKET = re.compile(r"\((?P<opened>[^()]+)(?P<alone>\))?|(?P<closed>[^()]+)\)")
PART = re.compile(r"(?P<entity>.+)\[(?P<part>\d+)/(?P<parts>\d+)\]")


class Marked(NamedTuple):
    """A token with `Entity=`. A mention that opens here begins with word `first`, one that closes ends with `last`.

    Both are the word itself; of an empty node, which no text shows, they are the words after and before it.
    """

    token: str
    first: int
    last: int
    entity: str


def entity_field(declared: str) -> int:
    """Which field of a `# global.Entity` is the entity. Errors: TextError where none is."""
    fields = declared.split("-")
    for name in ENTITY_FIELDS:
        if name in fields:
            return fields.index(name)
    raise TextError(f"'# global.Entity = {declared}' names no field GRP or eid, so no mention says whom it is of.")


def read_mentions(marked: Sequence[Marked], field: int, words: Sequence[GoldWord]) -> tuple[Mention, ...]:
    """One sentence's mentions, in order of their first words, the longer first of equals.

    Of a mention in several parts, the part that its head is in. A mention of empty nodes alone is of no word, and is
    left out. Errors: TextError for brackets that do not pair within the sentence, naming the token.
    """
    opened: dict[str, list[tuple[int, str, int]]] = defaultdict(list)
    pieces: list[tuple[int, str, int, int]] = []
    order = 0  # of opening: of two mentions of the same words, the outer one comes first
    for token, first, last, entity in marked:
        for bracket in _brackets(token, entity):
            name = _name(bracket["opened"] or bracket["closed"], bracket["opened"] is not None, field, token)
            if bracket["opened"]:
                opened[name].append((order, token, first))
                order += 1
            if bracket["closed"] or bracket["alone"]:
                if not opened[name]:
                    raise TextError(f"token {token} closes entity {name}, which is not open in this sentence.")
                number, _, begun = opened[name].pop()
                pieces.append((number, name, begun, last))
    for name, left in opened.items():
        if left:
            raise TextError(f"token {left[0][1]} opens entity {name}, which this sentence does not close.")
    mentions = (_mention(entity, spans, words) for entity, spans in _assembled(sorted(pieces)))
    return tuple(sorted((each for each in mentions if each), key=lambda each: (each.first, -each.last)))


def _brackets(token: str, entity: str) -> list[re.Match[str]]:
    found = list(BRACKET.finditer(entity))
    if "".join(match[0] for match in found) != entity:
        raise TextError(f"token {token}: Entity={entity} is no sequence of brackets such as (3-person(4-place)3).")
    return found


def _name(inside: str, opens: bool, field: int, token: str) -> str:
    """The entity, with the part where there are several. Older files close with all fields up to it ("person-12)")."""
    fields = inside.split("-")
    if len(fields) == 1 and not opens:
        return inside
    if field >= len(fields):
        raise TextError(f"token {token}: the bracket {inside!r} of Entity= lacks field {field + 1}, the entity.")
    return fields[field]


def _assembled(pieces: Sequence[tuple[int, str, int, int]]) -> list[tuple[str, list[tuple[int, int]]]]:
    """Mentions with their stretches of words: most have one. Parts go to the earliest mention that lacks them."""
    whole: list[tuple[str, list[tuple[int, int]]]] = []
    parted: dict[tuple[str, int], list[dict[int, tuple[int, int]]]] = defaultdict(list)
    for _, name, first, last in pieces:
        part = PART.fullmatch(name)
        if part is None:
            whole.append((name, [(first, last)]))
            continue
        number, waiting = int(part["part"]), parted[part["entity"], int(part["parts"])]
        mention = next((each for each in waiting if number not in each), None)
        if mention is None:
            waiting.append(mention := {})
        mention[number] = (first, last)
    for (entity, parts), waiting in parted.items():
        for mention in waiting:
            if set(mention) != set(range(1, parts + 1)):
                raise TextError(f"of a mention of entity {entity} in {parts} parts, only {sorted(mention)} are there.")
            whole.append((entity, [mention[number] for number in sorted(mention)]))
    return whole


def _mention(entity: str, spans: Sequence[tuple[int, int]], words: Sequence[GoldWord]) -> Mention | None:
    """The head is the first word that hangs on none of the mention's own (in a tree there always is one)."""
    own = {word for first, last in spans for word in range(first, last + 1)}
    if not own:
        return None
    head = min(word for word in own if words[word].head not in own)
    first, last = next((first, last) for first, last in spans if first <= head <= last)
    return Mention(first, last, head, entity)
