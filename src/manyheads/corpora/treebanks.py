"""Treebanks in CoNLL-U: sentences, or passages of them, with the words, syntax and coreference that people annotated.

Read a sentence at a time, by the `conllu` library; its lines are collected here, so that one that is malformed is a
document with a problem and no end of the file. Source: universaldependencies.org/format.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

from conllu import Token, parse_token_and_metadata
from conllu.exceptions import ParseException

from manyheads.corpora.coreference import Marked, entity_field, read_mentions
from manyheads.corpora.documents import Document
from manyheads.corpora.sources import Line, stretches
from manyheads.corpora.treewords import misc_value, read_words
from manyheads.errors import TextError
from manyheads.recording.tokens import ROOT
from manyheads.recording.tokens import Gold
from manyheads.recording.tokens import GoldWord
from manyheads.recording.tokens import Mention

UNITS = ("sentence", "passage")
MARKED = re.compile(r"[\t|]Entity=")
SENTENCE_LINES = 10_000  # the longest sentences of treebanks have some hundred words; one parsed takes kilobytes a word
PASSAGE_WORDS = 128  # Clark et al. 2019 cut documents to 128 tokens for coreference
# Columns that are taken as they stand: conllu drops what follows a second "=", and what we do not read may be odd.
AS_IT_IS = {name: lambda columns, index: columns[index] for name in ("xpos", "feats", "deps", "misc")}


class Sentence(NamedTuple):
    """A sentence, and the number in its file of the treebank's own document that it is of."""

    document: Document
    source: int


class Block(NamedTuple):
    """A sentence's lines and what its comments say, the number of the first line, and how far reading has come."""

    lines: list[str]
    comments: dict[str, str]
    number: int
    at: int
    problem: str

    @property
    def begins_document(self) -> bool:
        return bool(self.problem) or "newdoc" in self.comments or "newdoc id" in self.comments

    @property
    def has_entities(self) -> bool:
        """Whether it says that mentions are annotated here, or has one."""
        if "global.Entity" in self.comments:
            return True
        return any(MARKED.search(line) for line in self.lines if not line.startswith("#"))


def treebank_documents(lines: Iterable[Line], name: str, unit: str = "sentence") -> Iterator[Document]:
    """A treebank's sentences by their sent_id, or its passages.

    A passage is as many whole sentences of one of its documents (`# newdoc`) as have 128 words (`PASSAGE_WORDS`)
    together, with a blank between; a longer sentence is one alone, and one with a problem comes between passages.
    """
    sentences = read_sentences(lines, name)
    if unit == "sentence":
        yield from (sentence.document for sentence in sentences)
    else:
        for _, own in groupby(sentences, key=lambda sentence: sentence.source):
            yield from _passages(sentence.document for sentence in own)


def read_sentences(lines: Iterable[Line], name: str) -> Iterator[Sentence]:
    """The sentences one by one. What `# global.Entity` declares holds from there on; without it there are no mentions.

    A document has coreference where it declares that itself, or has an `Entity=`: files are put together of treebanks
    with and without. So sentences of one that has said nothing yet wait for its first `Entity=`, or for its end.
    `# newdoc` and `# global.Entity` count above a malformed sentence, too; where a line cannot be read at all, it may
    have been one of them, so that a new document begins.
    """
    source, declared, annotated = 0, None, False
    waiting: list[Sentence] = []
    for block in map(_block, stretches(lines, SENTENCE_LINES)):
        if block.begins_document:
            yield from waiting
            source, annotated, waiting = source + 1, False, []
        declared = block.comments.get("global.Entity", declared)
        annotated = annotated or (declared is not None and block.has_entities)
        document = _document(block, declared, f"{name}:{block.number}")
        waiting += [] if document is None else [Sentence(document, source)]
        if annotated or declared is None:
            yield from map(_annotated, waiting) if annotated else waiting
            waiting = []
    yield from waiting


def _annotated(sentence: Sentence) -> Sentence:
    document = sentence.document
    if document.gold is None:
        return sentence
    return sentence._replace(document=replace(document, gold=document.gold._replace(has_coreference=True)))


def _block(held: Sequence[Line]) -> Block:
    problem = next((line.problem for line in held if line.problem), "")
    lines = [line.text for line in held]
    return Block(lines, dict(_comments(lines)), held[0].number, held[-1].at, problem)


def _comments(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        if line.startswith("#"):
            key, _, value = line[1:].partition("=")
            yield key.strip(), value.strip()


def _document(block: Block, declared: str | None, where: str) -> Document | None:
    """A sentence is called by its sent_id, or after its first line. Comments alone are no sentence."""
    name = block.comments.get("sent_id") or where
    try:
        tokens = _parsed(block)
        if not tokens:
            return None
        text, words = read_words(tokens, block.comments.get("text"))
        mentions = _mentions(tokens, declared, words)
    except TextError as error:
        place = "" if name == where else f"the sentence at {where}: "
        return Document("", name, at=block.at, problem=f"{place}{error}")
    has_syntax = any(token["head"] is not None for token in tokens if "head" in token)
    return Document(text, name, Gold(words, mentions, has_syntax), block.at)


def _parsed(block: Block) -> Sequence[Token]:
    if block.problem:
        raise TextError(block.problem)
    try:
        return parse_token_and_metadata("\n".join(block.lines), field_parsers=dict(AS_IT_IS))
    except (ParseException, ValueError) as error:  # ValueError: a number of thousands of digits
        raise TextError(f"{_unread(block)} is not CoNLL-U ({str(error).rstrip('.')}).") from error


def _unread(block: Block) -> str:
    """The line that conllu cannot read: it does not say which."""
    for number, line in enumerate(block.lines, block.number):
        try:
            parse_token_and_metadata(line, field_parsers=dict(AS_IT_IS))
        except (ParseException, ValueError):
            return f"line {number:,}"
    return "a line"


def _mentions(tokens: Sequence[Token], declared: str | None, words: Sequence[GoldWord]) -> tuple[Mention, ...]:
    marked = list(_marked(tokens))
    if not marked:
        return ()
    if declared is None:
        raise TextError(
            f"token {marked[0].token} has Entity=, but no '# global.Entity = GRP-...' above says what its fields mean."
        )
    return read_mentions(marked, entity_field(declared), words)


def _marked(tokens: Sequence[Token]) -> Iterator[Marked]:
    read = 0  # words so far
    for token in tokens:
        place = token["id"]
        is_word = isinstance(place, int)
        entity = misc_value(token, "Entity")
        if entity is not None:
            told = str(place) if is_word else "".join(map(str, place))
            if "-" in told:
                raise TextError(f"the range {told} has Entity=, which belongs to the words in it.")
            yield Marked(told, read, read if is_word else read - 1, entity)
        read += is_word


def _passages(sentences: Iterable[Document]) -> Iterator[Document]:
    held: list[Document] = []
    count = 0
    for sentence in sentences:
        size = len(sentence.gold.words) if sentence.gold else 0
        if held and (sentence.problem or count + size > PASSAGE_WORDS):
            yield _joined(held)
            held, count = [], 0
        if sentence.problem:
            yield sentence
        else:
            held.append(sentence)
            count += size
    if held:
        yield _joined(held)


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
        for each in sentence.gold.mentions:
            mentions.append(each._replace(first=each.first + first, last=each.last + first, head=each.head + first))
        begin += len(sentence.text) + 1
    golds = [sentence.gold for sentence in sentences if sentence.gold]
    gold = Gold(
        tuple(words),
        tuple(mentions),
        has_syntax=all(gold.has_syntax for gold in golds),
        has_coreference=all(gold.has_coreference for gold in golds),
    )
    name = sentences[0].name if len(sentences) == 1 else f"{sentences[0].name}..{sentences[-1].name}"
    return Document(" ".join(sentence.text for sentence in sentences), name, gold, sentences[-1].at)
