"""How far a verb is: told to a function, or shown as a bar where somebody sees it, and taken away however it ends."""

import io
import sys
import threading
import time

import pytest

import manyheads as mh
from manyheads import progress as shown
from manyheads.progress import no_bars, shows_progress

TEXTS = ["A cat sat.", "The dog ran because it was late.", "One two three four."]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def terminal_of(monkeypatch):
    """A stderr that is a terminal, on which bars are seen at once. (In a fixture, pytest would put its own back.)"""
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(shown, "DELAY_SECONDS", 0.0)
    return sys.stderr


@shows_progress("counting")
def count(to, progress=None, *, fail=False):
    for number in range(to):
        if progress is not None:
            progress(number + 1, to)
        time.sleep(0.11)  # tqdm draws ten times a second at most
    if fail:
        raise KeyboardInterrupt
    return progress


def test_bar_is_shown_where_somebody_sees_it_and_goes_at_the_end(monkeypatch):
    terminal = terminal_of(monkeypatch)
    assert count(3) is not None
    seen = terminal.getvalue()
    assert "counting:   0%" in seen and "/3.00" in seen and seen.endswith("\r")
    with pytest.raises(KeyboardInterrupt):
        count(3, fail=True)
    assert terminal.getvalue().endswith("\r"), "Ctrl-C takes the bar away"


def test_progress_is_a_function_true_false_or_what_suits_the_place(monkeypatch):
    terminal = terminal_of(monkeypatch)
    calls = []
    for count_to in (lambda **how: count(2, **how), lambda progress: count(2, progress)):
        calls.clear()
        count_to(progress=lambda done, total: calls.append((done, total)))
        assert calls == [(1, 2), (2, 2)]
        assert count_to(progress=False) is None and terminal.getvalue() == ""
    with no_bars():
        assert count(2) is None and count(2, True) is not None
    got = []
    thread = threading.Thread(target=lambda: got.append(count(1)))
    thread.start()
    thread.join()
    monkeypatch.setenv("RANK", "3")
    assert [*got, count(1)] == [None, None], "a thread of a server, and the fourth of several processes"
    monkeypatch.delenv("RANK")
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert count(1) is None and count(1, progress=True) is not None


def test_recording_of_several_batches_says_how_many_tokens_are_read(minilm):
    calls, long = [], "A cat sat on the mat. " * 40
    mh.record(minilm, [*TEXTS, long], progress=lambda *report: calls.append(report))
    ids = [len(minilm.tokenizer(text)["input_ids"]) for text in (*TEXTS, long)]
    assert len(calls) > 1 and calls[-1] == (sum(ids), sum(ids)) and {total for _, total in calls} == {sum(ids)}
    assert calls == sorted(calls)
    calls.clear()
    mh.record(minilm, TEXTS[0], progress=lambda *report: calls.append(report))
    assert calls == [], "one forward pass has nothing to say"


def test_verb_within_a_verb_has_no_bar_of_its_own(monkeypatch):
    terminal = terminal_of(monkeypatch)

    @shows_progress("outer")
    def outer(*, progress=None):
        return progress, count(1), count(0, progress=progress)

    own, inner, passed = outer()
    assert own is not None and inner is None and passed is own
    assert "counting" not in terminal.getvalue()
    before = terminal.getvalue()
    assert outer(progress=False) == (None, None, None) and outer(progress=print)[1] is None
    assert terminal.getvalue() == before, "nor where the outer one has none"


def test_verbs_of_the_library_show_one_bar_each_and_read_the_same(minilm, monkeypatch):
    terminal = terminal_of(monkeypatch)
    want = mh.measure(minilm, TEXTS, ["entropy"], progress=False)["entropy"]
    assert terminal.getvalue() == ""
    got = mh.measure(minilm, TEXTS, ["entropy"])["entropy"]
    assert (got == want).all() and "measuring" in terminal.getvalue()
    told = []
    mh.importance(minilm, TEXTS, "gradient", progress=lambda *how_far: told.append(how_far))
    assert told[-1][0] == told[-1][1] and "importance" not in terminal.getvalue()
