"""Taps in several threads: each sees its own calls, changes nobody's output, and leaves nothing behind.

Models are small and random (`tiny`), and `minilm` with its trained weights. "Identical" means bit by bit.
"""

import random
import sys
import threading
import time
from contextlib import ExitStack
from functools import partial

import pytest
import torch

from manyheads.models import tap
from tests.models.eager import draw, padded
from tests.models.tapped import assert_identical, installed, num_layers
from tests.models.tiny import VOCAB_SIZE

TURNS = 8  # of two threads that meet in every layer
WAIT = 20.0  # seconds until a thread that waits for another gives up


def in_threads(*jobs):
    """Run jobs at the same time; the first real error of any is raised here."""
    errors = []

    def run(job):
        try:
            with torch.no_grad():
                job()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(3 * WAIT)
    errors.sort(key=lambda error: isinstance(error, threading.BrokenBarrierError))  # these follow from the others
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"


@pytest.mark.thinned
@pytest.mark.parametrize("first_out", [0, 1], ids=["first in, first out", "first in, last out"])
@pytest.mark.parametrize("shared", [True, False], ids=["one model", "two models"])
def test_two_threads_see_their_own_calls_and_leave_in_either_order(shared, first_out, made, fresh):
    models = [made("llama")] * 2 if shared else [made("llama"), made("gpt2")]
    before = installed()
    sizes = [(2, 7), (3, 11)]  # texts, tokens: tells a call's thread
    inputs = [padded(fresh, (length,) * texts, VOCAB_SIZE) for texts, length in sizes]
    with torch.no_grad():
        plain = [model(**x)[0] for model, x in zip(models, inputs, strict=True)]
    for _ in range(TURNS):
        meet, entered, left = threading.Barrier(2, timeout=WAIT), threading.Event(), threading.Event()

        def job(me, meet=meet, entered=entered, left=left):
            seen, together = [], True

            def on_call(call):
                seen.append((call.q.shape[0], call.q.shape[2]))
                if together:
                    meet.wait()  # both threads are inside the same layer's call

            if me == 1:
                entered.wait(WAIT)
            with tap(models[me], on_call=on_call) as state:
                entered.set()
                meet.wait()
                assert_identical(models[me](**inputs[me])[0], plain[me])
                assert seen == [sizes[me]] * num_layers(models[me])
                if me != first_out:  # the other is out now: nothing changes for who stays
                    assert left.wait(WAIT)
                    together = False
                    assert_identical(models[me](**inputs[me])[0], plain[me])
                    assert seen == [sizes[me]] * 2 * num_layers(models[me])
            if me == first_out:
                assert_identical(models[me](**inputs[me])[0], plain[me])  # out: passes through
                assert len(seen) == num_layers(models[me])
                left.set()
            assert len(state.sites) == num_layers(models[me])

        in_threads(lambda: job(0), lambda: job(1))
        assert installed() == before


def test_an_untapped_model_in_another_thread_passes_through(made, fresh):
    """The same model, and another one: neither is seen, edited or slowed into a wrapper of somebody else's tap."""
    mine, other = made("llama"), made("gpt2")
    inputs = [padded(fresh, (n,) * 2, VOCAB_SIZE) for n in (7, 11)]
    with torch.no_grad():
        plain = {id(model): model(**inputs[1])[0] for model in (mine, other)}
        untouched = mine(**inputs[0])[0]
    meet, seen = threading.Barrier(2, timeout=WAIT), []

    def taps():
        with tap(
            mine, on_call=lambda call: seen.append(call.q.shape[2]), edits=[lambda call: torch.zeros_like(call.out)]
        ):
            for _ in range(TURNS):
                meet.wait()
                assert not torch.equal(mine(**inputs[0])[0], untouched)
            meet.wait()

    def does_not():
        for _ in range(TURNS):
            meet.wait()
            for model in (mine, other):
                assert_identical(model(**inputs[1])[0], plain[id(model)])
        meet.wait()

    in_threads(taps, does_not)
    assert seen == [7] * num_layers(mine) * TURNS


def test_threads_that_come_and_go_at_any_moment_never_meet_each_others_calls(made, fresh):
    models = {"llama": made("llama"), "gpt2": made("gpt2")}
    before, interval = installed(), sys.getswitchinterval()
    jobs = [("llama", 5, True), ("llama", 7, True), ("gpt2", 9, True), ("llama", 11, False)]  # the last one never taps
    inputs = [padded(fresh, (length,) * 2, VOCAB_SIZE) for _, length, _ in jobs]
    with torch.no_grad():
        plain = [models[name](**x)[0] for (name, _, _), x in zip(jobs, inputs, strict=True)]
    start = threading.Barrier(len(jobs), timeout=WAIT)

    def job(me, seed):
        (name, length, tapping), pause = jobs[me], random.Random(seed)
        start.wait()
        for _ in range(2 * TURNS):
            seen = []
            with ExitStack() as stack:
                if tapping:
                    stack.enter_context(tap(models[name], on_call=lambda call, seen=seen: seen.append(call.q.shape[2])))
                assert_identical(models[name](**inputs[me])[0], plain[me])
                time.sleep(pause.random() * 1e-3)
            assert seen == [length] * (num_layers(models[name]) if tapping else 0)

    sys.setswitchinterval(1e-5)
    try:
        in_threads(*[partial(job, me, draw(fresh)) for me in range(len(jobs))])
    finally:
        sys.setswitchinterval(interval)
    assert installed() == before
