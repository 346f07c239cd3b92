"""Texts of a corpus that fail are named, counted and left out; what is no text's fault goes through."""

from dataclasses import replace

import pytest
import torch

import manyheads as mh
from manyheads.corpora import Document, Failure, Failures, is_about_texts
from manyheads.corpora.corpus import NAMED
from manyheads.errors import GuardError, StatisticError, TextError
from manyheads.recording import Sinks
from manyheads.statistics import Statistic
from manyheads.statistics.statistic import Block
from tests.models.eager import draw
from tests.statistics.corpusruns import CHUNK, assert_near, patch_few_texts, some_texts, tiny_lm


@pytest.fixture
def small(monkeypatch):
    patch_few_texts(monkeypatch)


def breaking(word: str, error: type[BaseException] = StatisticError) -> Statistic:
    """A statistic that cannot bear a word."""

    def finish(facts):
        if any(word in text.split() for text in facts.tokens.texts):
            raise error(f"what is {word}?")
        return facts.over_rows(facts.rows[:, None].double())

    return Statistic("breaking", "share", (0.0, 1.0), "a test", "a test", lambda _: (), finish)


def test_texts_that_fail_are_named_counted_and_left_out(small, fresh):
    lm, texts = tiny_lm(draw(fresh)), [text for text in some_texts(25, draw(fresh)) if "king" not in text.split()]
    good = mh.measure(lm, iter(texts), ["entropy", breaking("nothing")], sinks=Sinks())
    documents = [Document(text, f"page:{at}") for at, text in enumerate(texts)]
    bad = {3: "the king sat", 7: "  ", 20: "a king", 21: "\n"}
    for at, text in sorted(bad.items()):
        documents.insert(at, Document(text, f"bad:{at}"))
    documents.append(Document("", "bad:last", problem="a broken line"))
    found = mh.measure(lm, iter(documents), ["entropy", breaking("king")], sinks=Sinks())
    assert_near(found, good)
    assert found.failures.count == len(found.failures) == 5
    assert [each.name for each in found.failures] == [*(f"bad:{at}" for at in sorted(bad)), "bad:last"]
    assert [each.number for each in found.failures] == [*sorted(bad), len(documents) - 1]
    reasons = [each.reason for each in found.failures]
    assert reasons[0] == reasons[2] == "StatisticError: what is king?" and reasons[4] == "a broken line"
    assert reasons[1] == reasons[3] == "the text is empty: give at least one word"
    said = found.notes["failed"]
    assert said.startswith("5 texts could not be measured: bad:3: StatisticError: what is king?; bad:7: ")
    assert said.endswith("; and 2 more")
    assert found.notes["corpus"] == f"a stream of texts ({len(documents):,} read)"


def test_only_the_first_failures_are_kept_by_name(small):
    texts = [text for _ in range(NAMED + 5) for text in (" ", "the cat")]
    table = mh.measure(tiny_lm(), iter(texts), ["entropy"])
    assert table.failures.count == NAMED + 5 and len(table.failures.named) == NAMED
    assert [each.number for each in table.failures] == list(range(0, 2 * NAMED, 2))


def test_where_nothing_can_be_measured_the_first_error_is_raised_itself(small):
    with pytest.raises(StatisticError, match="what is king?"):
        mh.measure(tiny_lm(), iter(["the king"] * CHUNK), [breaking("king")])
    with pytest.raises(
        TextError, match=r"no text of a stream of texts could be measured: 2 texts could not be .* empty"
    ):
        mh.measure(tiny_lm(), iter(["", " "]), ["entropy"])

    def broken(*args, **kwargs):
        raise ZeroDivisionError("a broken tokenizer")

    lm = tiny_lm()
    with pytest.raises(ZeroDivisionError, match="a broken tokenizer"):
        mh.measure(replace(lm, tokenizer=broken), iter(["the cat"] * 5), ["entropy"])


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, OSError, torch.OutOfMemoryError, SystemExit])
def test_what_is_no_texts_fault_goes_through(error, small):
    with pytest.raises((error, mh.ModelError), match="what is zebra"):
        mh.measure(tiny_lm(), iter([*some_texts(CHUNK), "the zebra king"]), [breaking("zebra", error)])


def test_errors_of_memory_are_known_however_they_are_wrapped():
    def wrapped(inner):
        try:
            try:
                raise inner
            except BaseException as error:
                raise mh.ModelError("could not read its input") from error
        except mh.ModelError as error:
            return error

    assert not is_about_texts(wrapped(torch.OutOfMemoryError("CUDA out of memory")))
    assert not is_about_texts(wrapped(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")))
    assert is_about_texts(wrapped(IndexError("index out of range in self"))) and is_about_texts(GuardError("no"))


def test_a_text_that_one_tokenizer_call_cannot_read_costs_no_other(small, fresh):
    lm, texts = tiny_lm(draw(fresh)), some_texts(20, draw(fresh))
    table = mh.measure(lm, iter([*texts[:5], "a \ud800 cat", *texts[5:]]), ["entropy"])
    assert table.failures.count == 1 and table.failures.named[0].number == 5
    assert table.sums.num_texts == 20


def test_failures_add_in_any_order():
    every = [(number, f"d{number}", "why") for number in range(50)]
    parts = [Failures.of([Failure(*each) for each in every[start::3]]) for start in (2, 0, 1)]
    assert parts[0] + parts[1] + parts[2] == Failures.of([Failure(*each) for each in every])
    assert Failures.read((parts[0] + parts[1]).to_dict()) == parts[1] + parts[0]


def test_a_block_that_gives_nan_is_refused_by_name():
    def compute(facts):
        ones = facts.rows.sum(-1).double()[:, None, None].expand(-1, facts.layer.q.shape[1], 3).clone()
        ones[..., 1] = torch.nan
        return ones, torch.ones_like(ones[:, :1])

    block = Block("mine", compute)

    def unused(facts):
        raise AssertionError("a column of a block has no finish of its own")

    def column(name, at):
        return Statistic(name, "share", (0.0, 1.0), "a test", "a test", lambda _: (), unused, block=block, column=at)

    lm, texts = tiny_lm(), ["the cat", "a dog sat"]
    fine = mh.measure(lm, texts, [column("c", 2), "entropy", column("a", 0)])
    assert (fine.column("a") == fine.column("c")).all() and (fine.column("a") > 0).all()
    with pytest.raises(StatisticError, match=r"block 'mine' \('b'\) gave NaN or infinity, which would spread"):
        mh.measure(lm, texts, [column("a", 0), column("b", 1), "entropy"])
