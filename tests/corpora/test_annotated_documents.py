"""Which documents of a file have coreference: those that say so or have a mention, whatever stands before them."""

from __future__ import annotations

from tests.corpora.writing import chain, read

GRP = "GRP-etype"
FILE = "".join(
    (
        chain(["a"], sent_id="declared", newdoc_id="1", global__Entity=GRP),  # says so; has no mention
        chain(["b"], sent_id="plain 1", newdoc_id="2"),  # another treebank, put after it
        chain(["c"], sent_id="plain 2"),
        chain(["d"], sent_id="marked 1", newdoc_id="3"),  # does not say so, but has a mention
        chain(["e"], ["(7-x)"], sent_id="marked 2"),
        chain(["f"], sent_id="marked 3"),
    )
)


def test_a_document_has_coreference_where_it_declares_it_or_has_a_mention():
    found = {each.name: each.gold.has_coreference for each in read(FILE)}
    plain = {"plain 1": False, "plain 2": False}
    assert found == {"declared": True, **plain, "marked 1": True, "marked 2": True, "marked 3": True}
    assert list(found) == ["declared", "plain 1", "plain 2", "marked 1", "marked 2", "marked 3"]


def test_passages_have_it_as_their_document_does():
    assert [each.gold.has_coreference for each in read(FILE, "passage")] == [True, False, True]


def test_nothing_waits_where_a_file_has_said_nothing_of_coreference():
    """Else a treebank without documents would be held whole."""
    from manyheads.corpora.lines import Line
    from manyheads.corpora.treebanks import read_sentences

    lines = (chain(["a"], newdoc_id="1") + chain(["b"]) * 5).split("\n")
    taken = []
    stream = read_sentences((taken.append(text) or Line(at, text, at) for at, text in enumerate(lines, 1)), "x")
    next(stream)
    assert len(taken) < len(lines) / 2
