"""Treebanks in CoNLL-U: sentences, or passages of them, with the words, syntax and coreference that people annotated.

Read a sentence at a time, by the `conllu` library; a sentence's lines are collected here, so that a malformed sentence
becomes a document with a problem and does not end the file. Source: universaldependencies.org/format.

Mentions are in the `Entity=` of the last column, as GUM and CorefUD write it: `# global.Entity = GRP-etype-infstat-...`
names the fields of an opening bracket; GRP (CorefUD: eid) is the entity. `(7-abstract-new(3-abstract-giv)` opens a
mention of 7 and, inside it, one of 3 that is this word alone; `7)6)` closes two. `(12[1/2]-...` is the first of a
mention's two parts. Bridging and split antecedents stand elsewhere and are left out.
Source: Nedoluzhko et al. 2022, CorefUD 1.0; Zeldes 2017, the GUM corpus.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# conllu has no types: its tokens are dictionaries of anything.

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Literal, NamedTuple, get_args

from conllu import Token, parse_token_and_metadata
from conllu.exceptions import ParseException

from manyheads.corpora.lines import Line, stretches
from manyheads.errors import TextError
from manyheads.texts import ROOT, Document, Gold, GoldWord, Mention

Unit = Literal["sentence", "passage"]
UNITS: tuple[Unit, ...] = get_args(Unit)
MARKED = re.compile(r"[\t|]Entity=")
SENTENCE_LINES = 10_000  # the longest sentences of treebanks have some hundred words; one parsed takes kilobytes a word
PASSAGE_WORDS = 128  # Clark et al. 2019 cut documents to 128 tokens for coreference
# Columns that are taken as they stand: conllu drops what follows a second "=", and what we do not read may be odd.
VERBATIM: dict[str, Callable[[Sequence[str], int], str]] = {
    name: lambda columns, index: columns[index] for name in ("xpos", "feats", "deps", "misc")
}
NONE = "_"
ENTITY_FIELDS = ("GRP", "eid")
BRACKET = re.compile(r"\((?P<opened>[^()]+)(?P<alone>\))?|(?P<closed>[^()]+)\)")
PART = re.compile(r"(?P<entity>.+)\[(?P<part>\d+)/(?P<parts>\d+)\]")


class Sentence(NamedTuple):
    """A sentence, and the number in its file of the treebank's own document that it is of."""

    document: Document
    source: int


class Block(NamedTuple):
    """A sentence's lines and the keys of its comments, the number of the first line, and how far reading has come."""

    lines: list[str]
    comments: dict[str, str]
    number: int
    at: int
    problem: str

    @staticmethod
    def of(stretch: Sequence[Line]) -> Block:
        problem = next((line.problem for line in stretch if line.problem), "")
        lines = [line.text for line in stretch]
        comments: dict[str, str] = {}
        for line in lines:
            if line.startswith("#"):
                key, _, value = line[1:].partition("=")
                comments[key.strip()] = value.strip()
        return Block(lines, comments, stretch[0].number, stretch[-1].at, problem)

    @property
    def begins_document(self) -> bool:
        return bool(self.problem) or "newdoc" in self.comments or "newdoc id" in self.comments

    @property
    def has_entities(self) -> bool:
        """Whether it declares that mentions are annotated here, or has one."""
        if "global.Entity" in self.comments:
            return True
        return any(MARKED.search(line) for line in self.lines if not line.startswith("#"))

    def tokens(self) -> Sequence[Token]:
        """Its rows, parsed; none where it is comments alone. Errors: TextError, with the line where it can be told."""
        if self.problem:
            raise TextError(self.problem)
        try:
            return parse_token_and_metadata("\n".join(self.lines), field_parsers=dict(VERBATIM))
        except (ParseException, ValueError) as error:  # ValueError: a number of thousands of digits
            # conllu does not say which line it cannot read: find it by reading them one by one.
            place = "a line"
            for number, line in enumerate(self.lines, self.number):
                try:
                    parse_token_and_metadata(line, field_parsers=dict(VERBATIM))
                except (ParseException, ValueError):
                    place = f"line {number:,}"
                    break
            raise TextError(f"{place} is not CoNLL-U ({str(error).rstrip('.')}).") from error


def treebank_documents(lines: Iterable[Line], name: str, unit: str = "sentence") -> Iterator[Document]:
    """A treebank's sentences by their sent_id, or its passages.

    A passage is as many whole sentences of one of its documents (`# newdoc`) as have 128 words (`PASSAGE_WORDS`)
    together, with a blank between; a longer sentence is one alone, and one with a problem comes between passages.
    """
    sentences = read_sentences(lines, name)
    if unit == "sentence":
        yield from (sentence.document for sentence in sentences)
        return
    for _, of_document in groupby(sentences, key=lambda sentence: sentence.source):
        passage: list[Document] = []
        count = 0
        for document in (sentence.document for sentence in of_document):
            size = len(document.gold.words) if document.gold else 0
            if passage and (document.problem or count + size > PASSAGE_WORDS):
                yield _joined(passage)
                passage, count = [], 0
            if document.problem:
                yield document
            else:
                passage.append(document)
                count += size
        if passage:
            yield _joined(passage)


def read_sentences(lines: Iterable[Line], name: str) -> Iterator[Sentence]:
    """The sentences one by one. A `# global.Entity` holds from there on; without it there are no mentions.

    A document has coreference where it declares that itself, or has an `Entity=`: files are put together of treebanks
    with and without. So sentences of a document without either wait for its first `Entity=`, or for its end.
    `# newdoc` and `# global.Entity` count above a malformed sentence as well; where a line cannot be read at all, it
    may have been one of them, so that a new document begins.
    """
    source, declared, annotated = 0, None, False
    waiting: list[Sentence] = []
    for block in map(Block.of, stretches(lines, SENTENCE_LINES)):
        if block.begins_document:
            yield from waiting
            # `declared` stays: a `# global.Entity` holds for the documents after it as well.
            source, annotated, waiting = source + 1, False, []
        declared = block.comments.get("global.Entity", declared)
        annotated = annotated or (declared is not None and block.has_entities)
        document = _document(block, declared, f"{name}:{block.number}")
        waiting += [] if document is None else [Sentence(document, source)]
        if annotated or declared is None:
            for sentence in waiting:
                gold = sentence.document.gold
                if annotated and gold is not None:
                    document = replace(sentence.document, gold=gold._replace(has_coreference=True))
                    sentence = sentence._replace(document=document)
                yield sentence
            waiting = []
    yield from waiting


def _document(block: Block, declared: str | None, where: str) -> Document | None:
    """A sentence is called by its sent_id, or after its first line. Comments alone are not a sentence."""
    name = block.comments.get("sent_id") or where
    try:
        tokens = block.tokens()
        if not tokens:
            return None
        text, words = read_words(tokens, block.comments.get("text"))
        # The tokens with `Entity=`, between the words that they are or stand among.
        marked: list[Marked] = []
        num_words = 0  # so far
        for token in tokens:
            place = token["id"]
            is_word = isinstance(place, int)
            entity = misc_value(token, "Entity")
            if entity is not None:
                number = str(place) if is_word else "".join(map(str, place))
                if "-" in number:
                    raise TextError(f"the range {number} has Entity=, which belongs to the words in it.")
                marked.append(Marked(number, num_words, num_words if is_word else num_words - 1, entity))
            num_words += is_word
        if marked and declared is None:
            raise TextError(
                f"token {marked[0].token} has Entity=, but no '# global.Entity = GRP-...' above says what its fields "
                f"mean."
            )
        mentions = read_mentions(marked, entity_field(declared), words) if marked and declared is not None else ()
    except TextError as error:
        place = "" if name == where else f"the sentence at {where}: "
        return Document("", name, at=block.at, problem=f"{place}{error}")
    has_syntax = any(token["head"] is not None for token in tokens if "head" in token)
    return Document(text, name, Gold(words, mentions, has_syntax), at=block.at)


def _joined(sentences: Sequence[Document]) -> Document:
    """Sentences as one text: characters, words and heads count on from sentence to sentence."""
    words: list[GoldWord] = []
    mentions: list[Mention] = []
    begin = 0
    for sentence in sentences:
        assert sentence.gold is not None
        first = len(words)
        for word in sentence.gold.words:
            head = word.head if word.head == ROOT else word.head + first
            words.append(word._replace(begin=word.begin + begin, end=word.end + begin, head=head))
        for mention in sentence.gold.mentions:
            moved = {"first": mention.first + first, "last": mention.last + first, "head": mention.head + first}
            mentions.append(mention._replace(**moved))
        # One more for the blank that stands between two sentences.
        begin += len(sentence.text) + 1
    golds = [sentence.gold for sentence in sentences if sentence.gold]
    gold = Gold(
        tuple(words),
        tuple(mentions),
        has_syntax=all(gold.has_syntax for gold in golds),
        has_coreference=all(gold.has_coreference for gold in golds),
    )
    name = sentences[0].name if len(sentences) == 1 else f"{sentences[0].name}..{sentences[-1].name}"
    return Document(" ".join(sentence.text for sentence in sentences), name, gold, at=sentences[-1].at)


class Surface(NamedTuple):
    """A stretch of the text, and the words in it: one, or several that share it whole."""

    form: str
    words: int
    blank: bool


def read_words(tokens: Sequence[Token], text: str | None) -> tuple[str, tuple[GoldWord, ...]]:
    """The sentence's text and words. Where no text is given, it is made of the forms and SpaceAfter=No.

    "don't" over "do" and "n't" is divided between them; the words of "im" (German "in" and "dem") share its span.
    Errors: TextError for words that are not in the text in order, that are not numbered 1, 2, 3, or are not a tree.
    """
    words = [token for token in tokens if isinstance(token["id"], int)]
    for number, word in enumerate(words, 1):
        if word["id"] != number:
            raise TextError(f"token {word['id']} comes where token {number} was expected.")
        if "deprel" not in word:
            raise TextError(f"token {number} has {len(word)} columns: a relation is in the eighth.")
    surfaces = list(_surfaces(tokens))
    if not words:
        raise TextError("it has no word, only tokens that are not in its text.")
    if not text:
        text = "".join(surface.form + " " * surface.blank for surface in surfaces).rstrip()
    heads = read_heads(words)
    return text, tuple(
        GoldWord(begin, end, _filled(word["upos"]), head, _filled(word["deprel"]))
        for (begin, end), word, head in zip(_spans(surfaces, text), words, heads, strict=True)
    )


def _filled(value: str) -> str:
    return "" if value == NONE else value


def read_heads(words: Sequence[Token]) -> list[int]:
    """The words' heads, counted from 0; all are ROOT where the column is empty. Errors: TextError for no tree."""
    column = [word["head"] for word in words]
    if all(head is None for head in column):
        return [ROOT] * len(words)
    heads: list[int] = []
    for number, head in enumerate(column, 1):
        if head is None or not 0 <= head <= len(words) or head == number:
            entry = "no head" if head is None else f"head {head}"
            raise TextError(
                f"token {number} has {entry}, but each of the {len(words)} words depends on another or on 0."
            )
        heads.append(head - 1)
    # From the safe ones heads lead to the root, so that each word is walked once: no quadratic time on a long chain.
    safe = {ROOT}
    for start in range(len(words)):
        path, word = set[int](), start
        while word not in safe:
            if word in path:
                raise TextError(f"token {word + 1} depends on itself, through other words: that is not a tree.")
            path.add(word)
            word = heads[word]
        safe |= path
    return heads


def misc_value(token: Token, key: str) -> str | None:
    """The value of a key (`Entity`, `SpaceAfter`) in the last column; None where it is not there."""
    misc = token.get("misc") or ""
    if key not in misc:
        return None
    return next((part[len(key) + 1 :] for part in misc.split("|") if part.startswith(f"{key}=")), None)


def _surfaces(tokens: Sequence[Token]) -> Iterator[Surface]:
    """The surfaces of a text: words, and ranges of words in place of the words that they cover; no empty nodes."""
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
            count = last - first + 1  # in a damaged range any number at all
            words = [word for word in tokens[index:] if isinstance(word["id"], int)][: max(0, count)]
            numbers = [word["id"] for word in words]
            if not words or len(words) != count or numbers != [*range(first, first + len(words))]:
                raise TextError(f"the words of {first}-{last} {token['form']!r} do not follow it.")
            while index < len(tokens) and tokens[index]["id"] != last:
                index += 1
            index += 1
            blank = misc_value(token, "SpaceAfter") != "No"
            forms = [word["form"] for word in words]
            if "".join(forms) == token["form"]:
                yield from (Surface(form, 1, False) for form in forms[:-1])
                yield Surface(forms[-1], 1, blank)
            else:
                yield Surface(token["form"], len(words), blank)


def _spans(surfaces: Sequence[Surface], text: str) -> Iterator[tuple[int, int]]:
    """Each word's characters. White space counts on neither side: texts have it where forms do not, and otherwise."""
    # Compared letter by letter: forms may lack a blank that the text has ("10 000"), and the other way round.
    places = [place for place, char in enumerate(text) if not char.isspace()]
    letters = "".join(text[place] for place in places)
    begin = number = 0
    for form, words, _ in surfaces:
        bare = "".join(form.split())
        if not bare or not letters.startswith(bare, begin):
            following = text[places[begin] :][:20] if begin < len(places) else ""
            raise TextError(f"token {number + 1} {form!r} is not how the text goes on ({following!r}).")
        span = places[begin], places[begin + len(bare) - 1] + 1
        yield from (span for _ in range(words))
        begin, number = begin + len(bare), number + words
    if begin < len(places):
        raise TextError(f"the text goes on after the last token ({text[places[begin] :][:20]!r}).")


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
    raise TextError(
        f"'# global.Entity = {declared}' names no field GRP or eid, so no mention says which entity it names."
    )


def read_mentions(marked: Sequence[Marked], field: int, words: Sequence[GoldWord]) -> tuple[Mention, ...]:
    """One sentence's mentions, in order of their first words, the longer first of equals.

    Of a mention in several parts, the part that its head is in. A mention of empty nodes alone is of no word, and is
    left out. Errors: TextError for brackets that do not pair within the sentence, naming the token.
    """
    opened: dict[str, list[tuple[int, str, int]]] = defaultdict(list)
    pieces: list[tuple[int, str, int, int]] = []
    # Of two mentions of the same words, the one that opened first is the outer one, and comes first.
    order = 0
    for token, first, last, entity in marked:
        brackets = list(BRACKET.finditer(entity))
        if "".join(bracket[0] for bracket in brackets) != entity:
            raise TextError(
                f"token {token}: Entity={entity} is not a sequence of brackets such as (3-person(4-place)3)."
            )
        for bracket in brackets:
            # The entity, with the part where there are several.
            inside = bracket["opened"] or bracket["closed"]
            fields = inside.split("-")
            if len(fields) == 1 and not bracket["opened"]:  # older files close with all fields up to it ("person-12)")
                name = inside
            elif field < len(fields):
                name = fields[field]
            else:
                raise TextError(
                    f"token {token}: the bracket {inside!r} of Entity= lacks field {field + 1}, the entity."
                )
            if bracket["opened"]:
                opened[name].append((order, token, first))
                order += 1
            if bracket["closed"] or bracket["alone"]:
                if not opened[name]:
                    raise TextError(f"token {token} closes entity {name}, which is not open in this sentence.")
                number, _, begin = opened[name].pop()
                pieces.append((number, name, begin, last))
    for name, unclosed in opened.items():
        if unclosed:
            raise TextError(f"token {unclosed[0][1]} opens entity {name}, which this sentence does not close.")
    mentions: list[Mention] = []
    for entity, spans in _assembled(sorted(pieces)):
        members = {word for first, last in spans for word in range(first, last + 1)}
        if members:
            # The head is the first word that depends on no other word of the mention: in a tree there always is one.
            head = min(word for word in members if words[word].head not in members)
            first, last = next((first, last) for first, last in spans if first <= head <= last)
            mentions.append(Mention(first, last, head, entity))
    return tuple(sorted(mentions, key=lambda mention: (mention.first, -mention.last)))


def _assembled(pieces: Sequence[tuple[int, str, int, int]]) -> list[tuple[str, list[tuple[int, int]]]]:
    """Mentions with their stretches of words: most have one. Parts go to the earliest mention that lacks them."""
    mentions: list[tuple[str, list[tuple[int, int]]]] = []
    parted: dict[tuple[str, int], list[dict[int, tuple[int, int]]]] = defaultdict(list)
    for _, name, first, last in pieces:
        part = PART.fullmatch(name)
        if part is None:
            mentions.append((name, [(first, last)]))
            continue
        number, waiting = int(part["part"]), parted[part["entity"], int(part["parts"])]
        mention = next((spans for spans in waiting if number not in spans), None)
        if mention is None:
            waiting.append(mention := {})
        mention[number] = (first, last)
    for (entity, parts), waiting in parted.items():
        for mention in waiting:
            if set(mention) != set(range(1, parts + 1)):
                raise TextError(f"of a mention of entity {entity} in {parts} parts, only {sorted(mention)} are there.")
            mentions.append((entity, [mention[number] for number in sorted(mention)]))
    return mentions
