"""The exercises of the notebook on a circuit: its solutions are right, stubs are not, each known mistake is named."""

import nbformat
import pytest

from examples.make import EXAMPLES
from manyheads.lab import practice
from manyheads.lab.lessons.progress import Progress
from tests import seeds

from .solutions import changed, function_of

TASKS = practice.IOI_EXERCISES
LAST = "logits[texts, -1, right] - logits[texts, -1, wrong]"
CHOICE, HELD = "theirs if name == part else own", "{**own, sender: given[sender]}"
MISTAKES = {
    "ioi-logit-difference": (
        ("another token", ("-1", "0")),
        ("another token", ("-1", "-2")),
        ("another token", ("    texts", "    logits = logits.mean(1, keepdims=True)\n    texts")),
        ("one text's answers for all", ("right]", "right[0]]"), ("wrong]", "wrong[0]]")),
        ("wrong sign", (f"return {LAST}", f"return -({LAST})")),
        ("right answer alone", (LAST, "logits[texts, -1, right]")),
        ("probabilities", ("    texts", "    e = np.exp(logits)\n    logits = e / e.sum(2, keepdims=True)\n    texts")),
        ("mean over texts", (LAST, f"({LAST}).mean()")),
    ),
    "ioi-attribution": (
        ("no norm", ("added / rms", "added")),
        ("no weight of the norm", (" * norm_weight", "")),
        ("each head normed by itself", ("(stream**2).mean(-1))[:, None, None]", "(added**2).mean(-1, keepdims=True))")),
        ("no root", ("np.sqrt((stream**2).mean(-1))", "(stream**2).mean(-1)")),
        ("length in place of rms", ("mean(-1)", "sum(-1)")),
        ("centred", ("    rms =", "    added = added - added.mean(-1, keepdims=True)\n    rms ="),
         ("(stream**2)", "((stream - stream.mean(-1, keepdims=True))**2)")),
        ("one projection for all", ('"bhf,hfm->bhm", out, w_o', '"bhf,fm->bhm", out, w_o[0]')),
        ("heads added up", (").sum(-1)", ").sum((1, 2))")),
    ),
    "ioi-patch": (
        ("wrong axis", ("[:, head]", "[head]")),
        ("wrong axis", ("[:, head]", "[:, :, head]")),
        ("whole layer", ("patched[:, head] = other[:, head]", "patched[:] = other")),
        ("wrong direction", ("out.copy()", "other.copy()"), ("= other[:, head]", "= out[:, head]")),
        ("last token only", ("[:, head]", "[:, head, -1]")),
        ("head alone returned", ("return patched", "return other[:, head]")),
        ("set to zero", ("= other[:, head]", "= 0")),
        ("nothing changed", ("return patched", "return out")),
    ),
    "ioi-gap": (
        ("mean of ratios", ("(patched - corrupted).mean(1) / (clean - corrupted).mean()",
                            "((patched - corrupted) / (clean - corrupted)).mean(1)")),
        ("corrupted level left in", ("(patched - corrupted)", "patched")),
        ("divided by the clean level", ("(clean - corrupted)", "clean")),
        ("what is missing", ("(patched - corrupted)", "(clean - patched)")),
        ("wrong sign", ("(clean - corrupted)", "(corrupted - clean)")),
        ("not divided", (" / (clean - corrupted).mean()", "")),
        ("not averaged", (".mean(1)", "")),
    ),
    "ioi-part": (
        ("wrong key/value head", ("head // (len(q) // len(k))", "head % len(k)")),
        ("wrong key/value head", ("head // (len(q) // len(k))", "0")),
        ("wrong key/value head", ("head // (len(q) // len(k))", "min(head, len(k) - 1)")),
        ("everything from the other run", (CHOICE, "theirs")),
        ("wrong part", ("name == part", "name != part")),
        ("nothing taken", (CHOICE, "own")),
        ("keys and values together", ("name == part", "(name == 'q') == (part == 'q')")),
        ("no mask", ("np.tri(len(q))", "np.ones((len(q), len(q)))")),
        ("missing scale", (" / np.sqrt(q.shape[1])", "")),
        ("scaled by d", ("/ np.sqrt(q.shape[1])", "/ q.shape[1]")),
    ),
    "ioi-path": (
        ("others not held", (HELD, "{sender: given[sender]}")),
        ("held at the clean run", ("**own", "**given")),
        ("sender not patched", (HELD, "own")),
        ("sender not patched", (f", out={HELD}", "")),
        ("sender patched", ("reads={receiver: reads[receiver]}", "out={sender: given[sender]}")),
        ("all that reaches the receiver", ("_, given, _ =", "_, given, reads ="), ("_, _, reads =", "_ =")),
        ("held in the last run", ("(corrupted, reads=", f"(corrupted, out={HELD}, reads=")),
        ("runs swapped", ("run, clean, corrupted,", "run, corrupted, clean,")),
    ),
    "ioi-looks": (
        ("rows and columns swapped", ("[:, query, key]", "[:, key, query]")),
        ("induction looks at the name itself", ("(s2, s1 + 1)", "(s2, s1)")),
        ("induction looks at the name itself", ("(s2, s1 + 1)", "(s2, s1 - 1)")),
        ("S-inhibition looks at the first mention", ("(-1, s2)", "(-1, s1)")),
        ("name mover looks at the wrong name", ("(-1, io)", "(-1, s1)")),
        ("before the name", ("(s1 + 1, s1)", "(s1, s1 - 1)")),
        ("not the end", ("(-1,", "(-2,")),
    ),
    "ioi-copies": (
        ("counted from 1", (" > own", " >= own")),
        ("smallest first", (" > own", " < own")),
        ("among the names alone", ("(logits > own", "(logits[:, tokens] > own")),
        ("logits returned", ("return (logits > own[:, None]).sum(1)", "return own")),
        ("best token returned", ("return (logits > own[:, None]).sum(1)", "return logits.argmax(1)")),
        ("head left out", (" @ w_v @ w_o", "")),
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("MANYHEADS_STATE", str(tmp_path / "state"))


def written(notebook):
    """The functions that the cells for learners define, as source, by exercise; NumPy is there."""
    cells = nbformat.read(EXAMPLES / f"{notebook}.ipynb", 4).cells
    sources = [cell.source for cell in cells if "exercise" in cell.metadata.get("tags", ())]
    return {
        source.partition('judge("')[2].partition('"')[0]: "import numpy as np\n" + source.rpartition("\n\n\n")[0]
        for source in sources
    }


SOLUTIONS, STUBS = written("ioi_solutions"), written("ioi_exercises")


def judged(name, source):
    return practice.judge(name, function_of(source, TASKS[name].function), seed=seeds.seed() % 2**31)


def test_notebook_asks_for_every_exercise_with_its_signature_and_every_mistake_has_a_learner_who_makes_it():
    assert list(SOLUTIONS) == list(STUBS) == list(TASKS) == list(MISTAKES)
    for name, task in TASKS.items():
        assert f"def {task.signature}:" in SOLUTIONS[name] and f"def {task.signature}:" in STUBS[name]
        assert {mistake.name for mistake in task.mistakes} == {mistake for mistake, *_ in MISTAKES[name]}


@pytest.mark.parametrize("name", TASKS)
def test_solution_of_the_notebook_is_right_and_gives_no_points_and_its_stub_is_not(name):
    verdict = judged(name, SOLUTIONS[name])
    assert verdict.right and verdict.words.startswith("Right: "), verdict.words
    assert Progress().points == {}
    assert "returns None (is a return missing?)" in judged(name, STUBS[name]).words


@pytest.mark.parametrize(
    ("name", "mistake", "changes"),
    [(name, mistake, changes) for name, broken in MISTAKES.items() for mistake, *changes in broken],
)
def test_mistake_is_named(name, mistake, changes):
    verdict = judged(name, changed(SOLUTIONS[name], *changes))
    assert verdict.mistakes == (mistake,) and not verdict.right, verdict.words


def test_patch_that_writes_into_its_input_is_told_though_its_numbers_are_right():
    verdict = judged("ioi-patch", changed(SOLUTIONS["ioi-patch"], ("out.copy()", "out")))
    assert not verdict.right and "it writes into `out` itself" in verdict.words
