"""How far the two annotations of our own sentences agree, where they differ, and what the settled file holds.

`python tests/corpora/agreement/agreement.py` prints the tables of README.md and every difference.
Agreement is between `one.conllu` and `two.conllu`, as they were before anything was settled; the counts are of the
settled file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from conllu import Token, TokenList, parse

HERE = Path(__file__).parent
SETTLED = HERE.parents[2] / "src/manyheads/corpora/sentences.conllu"
BRACKET = re.compile(r"\((\d+)-(\w+)(\))?|(\d+)\)")
COLUMNS = ("lemma", "upos", "xpos", "head", "deprel")
DOCUMENT = "document"  # each sentence's metadata names its document here


class Span(NamedTuple):
    """A mention's place: its sentence, its first and its last token, counted from 1."""

    sentence: str
    first: int
    last: int


class Mention(NamedTuple):
    span: Span
    entity: str
    kind: str
    document: str


def read(path: Path) -> list[TokenList]:
    sentences, document = list(parse(path.read_text(encoding="utf-8"))), ""
    for sentence in sentences:
        document = sentence.metadata.get("newdoc id", document)
        sentence.metadata[DOCUMENT] = document
    return sentences


def mentions(sentences: Iterable[TokenList]) -> Iterator[Mention]:
    """All mentions, the outer before the inner. Brackets that do not nest or pair raise."""
    for sentence in sentences:
        name, open_ones, found = sentence.metadata["sent_id"], [], []
        for token in sentence:
            for entity, kind, alone, closed in BRACKET.findall((token["misc"] or {}).get("Entity", "")):
                if entity:
                    open_ones.append((entity, kind, token["id"]))
                if alone or closed:
                    entity, kind, first = open_ones.pop()
                    if closed and closed != entity:
                        raise ValueError(f"{name}: {closed} closes where {entity} is open")
                    found.append(Mention(Span(name, first, token["id"]), entity, kind, sentence.metadata[DOCUMENT]))
        if open_ones:
            raise ValueError(f"{name}: {open_ones} are not closed")
        yield from sorted(found, key=lambda each: (each.span.first, -each.span.last))


def links(found: Iterable[Mention]) -> set[tuple[Span, Span]]:
    """All pairs of mentions of one entity, not only neighbours."""
    return {(a.span, b.span) for a, b in combinations(found, 2) if a.entity == b.entity}


def shares(ours: set, theirs: set) -> str:
    """Of two sets: precision (share of theirs that is ours), recall, F1, and the numbers behind them."""
    both = len(ours & theirs)
    precision, recall = both / len(theirs), both / len(ours)
    f1 = 2 * both / (len(ours) + len(theirs))
    return f"P {precision:.3f}, R {recall:.3f}, F1 {f1:.3f} | {both} in both; {len(ours)} and {len(theirs)}"


def agreement_markdown(one: list[TokenList], two: list[TokenList]) -> str:
    pairs = [(a, b) for x, y in zip(one, two, strict=True) for a, b in zip(x, y, strict=True)]
    words = [(a, b) for a, b in pairs if "PUNCT" not in (a["upos"], b["upos"])]
    rows = [_share("UPOS", pairs, "upos"), _share("XPOS", pairs, "xpos"), _share("lemma", pairs, "lemma")]
    for told, chosen in (("all tokens", pairs), ("without punctuation", words)):
        rows += [_share(f"UAS, {told}", chosen, "head"), _share(f"LAS, {told}", chosen, "head", "deprel")]
    ours, theirs = ({each.span: each for each in mentions(sentences)} for sentences in (one, two))
    shared = ours.keys() & theirs.keys()
    same = sum(ours[span].kind == theirs[span].kind for span in shared)
    linked = [links(each for each in found.values() if each.span in shared) for found in (ours, theirs)]
    rows += [f"mentions, exact spans | {shares(set(ours), set(theirs))}"]
    rows += [f"entity type of mentions in both | {same / len(shared):.3f} | {same} of {len(shared)}"]
    rows += [f"coreference links between these | {shares(*linked)}"]
    return _table("what | agreement | counted", rows)


def _share(name: str, pairs: list[tuple[Token, Token]], *columns: str) -> str:
    same = sum(all(a[column] == b[column] for column in columns) for a, b in pairs)
    return f"{name} | {same / len(pairs):.3f} | {same} of {len(pairs)}"


def differences(one: list[TokenList], two: list[TokenList]) -> Iterator[str]:
    for x, y in zip(one, two, strict=True):
        for a, b in zip(x, y, strict=True):
            unlike = [f"{column} {a[column]} | {b[column]}" for column in COLUMNS if a[column] != b[column]]
            if unlike:
                yield f"{x.metadata['sent_id']} {a['id']} {a['form']}: " + ", ".join(unlike)
    ours, theirs = ({each.span: each for each in mentions(sentences)} for sentences in (one, two))
    forms = {sentence.metadata["sent_id"]: [token["form"] for token in sentence] for sentence in one}
    for span in sorted(ours.keys() | theirs.keys()):
        a, b = (found[span].kind if span in found else "no mention" for found in (ours, theirs))
        if a != b:
            told = " ".join(forms[span.sentence][span.first - 1 : span.last])
            yield f"{span.sentence} {span.first}-{span.last} {told}: {a} | {b}"


def counts_markdown(settled: list[TokenList]) -> str:
    tokens = [token for sentence in settled for token in sentence]
    upos = {sentence.metadata["sent_id"]: [token["upos"] for token in sentence] for sentence in settled}
    found = list(mentions(settled))
    sizes = Counter(each.entity for each in found)
    pronouns = [each for each in found if each.span.first == each.span.last and _first(each, upos) == "PRON"]
    before = [each for each in pronouns if any(_antecedent(other, each) for other in found[: found.index(each)])]
    inside = [
        each
        for each in before
        if any(_antecedent(other, each) and other.span.sentence == each.span.sentence for other in found)
    ]
    rows = [
        f"documents | {len({sentence.metadata[DOCUMENT] for sentence in settled})}",
        f"sentences | {len(settled)}",
        f"tokens | {len(tokens)}, of them {sum(token['upos'] == 'PUNCT' for token in tokens)} of punctuation",
        f"mentions | {len(found)}",
        f"entities | {len(sizes)}, of them {sum(size == 1 for size in sizes.values())} mentioned once",
        f"coreference links (all pairs) | {len(links(found))}",
        f"pronouns that are mentions | {len(pronouns)}",
        f"... with an antecedent before them | {len(before)}, of them {len(inside)} in the same sentence",
    ]
    return _table("what | how many", rows)


def relations_markdown(settled: list[TokenList]) -> str:
    counted = Counter(token["deprel"] for sentence in settled for token in sentence)
    ordered = sorted(counted.items(), key=lambda each: (-each[1], each[0]))
    return ", ".join(f"`{name}` {count}" for name, count in ordered)


def _first(mention: Mention, upos: dict[str, list[str]]) -> str:
    return upos[mention.span.sentence][mention.span.first - 1]


def _antecedent(other: Mention, mention: Mention) -> bool:
    """Whether `other` is of the same entity, begins earlier and is not around the mention."""
    a, b = other.span, mention.span
    around = a.sentence == b.sentence and a.last >= b.last
    earlier = a.sentence != b.sentence or a.first < b.first
    return other.entity == mention.entity and earlier and not around


def _table(head: str, rows: list[str]) -> str:
    line = "|" + "---|" * (head.count("|") + 1)
    return "\n".join([f"| {head} |", line, *(f"| {row} |" for row in rows)])


if __name__ == "__main__":
    one, two, settled = read(HERE / "one.conllu"), read(HERE / "two.conllu"), read(SETTLED)
    print(agreement_markdown(one, two), counts_markdown(settled), relations_markdown(settled), sep="\n\n")
    found = list(differences(one, two))
    print(f"\n{len(found)} differences, one | two:", *found, sep="\n")
