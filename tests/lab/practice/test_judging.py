"""Exercises: right solutions of any style pass, known mistakes are named, all else is told with its place."""

import numpy as np
import pytest

from manyheads.lab import practice
from manyheads.lab.lessons.progress import Progress
from tests import seeds

from .solutions import OTHER_STYLES, SOLUTIONS, changed, function_of


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    """Points of its own for each test."""
    monkeypatch.setenv("MANYHEADS_STATE", str(tmp_path / "state"))


def judged(name, source, seed=None):
    function = function_of(source, practice.EXERCISES[name].function)
    return practice.judge(name, function, seed=seeds.seed() % 2**31 if seed is None else seed, keep=False)


RIGHT = [(name, solution.source) for name, solution in SOLUTIONS.items()]
RIGHT += [(name, source) for name, sources in OTHER_STYLES.items() for source in sources]
BROKEN = [(name, *change) for name, solution in SOLUTIONS.items() for change in solution.broken]


def test_every_exercise_has_a_solution_and_every_known_mistake_a_learner_who_makes_it():
    mistakes = {(task.name, mistake.name) for task in practice.EXERCISES.values() for mistake in task.mistakes}
    assert list(SOLUTIONS) == list(practice.EXERCISES) and len(SOLUTIONS) == 10
    assert mistakes == {(name, mistake) for name, mistake, *_ in BROKEN}


@pytest.mark.parametrize(("name", "source"), RIGHT)
def test_right_solution_of_any_style_gives_the_points(name, source):
    verdict = judged(name, source)
    assert verdict.right and verdict.points == practice.EXERCISES[name].points, verdict.words
    assert verdict.words.startswith("Right: ") and not verdict.mistakes


@pytest.mark.parametrize(
    ("name", "mistake", "changes"), [(name, mistake, changes) for name, mistake, *changes in BROKEN]
)
def test_mistake_is_named_with_what_to_do(name, mistake, changes):
    verdict = judged(name, changed(SOLUTIONS[name].source, *changes))
    (hint,) = [known.hint for known in practice.EXERCISES[name].mistakes if known.name == mistake]
    assert not verdict.right and not verdict.points and verdict.mistakes == (mistake,), verdict.words
    assert verdict.words == f"Not yet. {mistake.capitalize()}: {hint}" == str(verdict)


def test_two_mistakes_at_once_are_both_named():
    changes = {name: {mistake: how for mistake, *how in SOLUTIONS[name].broken} for name in SOLUTIONS}
    for name, first, second in (
        ("causal-mask", "missing scale", "mask after softmax"),
        ("multi-head-batched", "heads mixed by a reshape", "heads merged by a reshape"),
    ):
        source = changed(SOLUTIONS[name].source, *changes[name][first], *changes[name][second])
        verdict = judged(name, source)
        assert set(verdict.mistakes) == {first, second} and first.capitalize() in verdict.words


def test_mistake_is_named_though_the_solution_writes_into_its_arguments():
    named = {mistake: how for mistake, *how in SOLUTIONS["causal-mask"].broken}["mask after softmax"]
    source = changed(SOLUTIONS["causal-mask"].source, *named, ("    n = q.shape[1]", "    n = q.shape[1]\n    v *= 1"))
    in_place = changed(source, (" / np.sqrt(q.shape[-1])", ""), ("    v *= 1", "    q /= np.sqrt(q.shape[-1])"))
    assert judged("causal-mask", source).mistakes == judged("causal-mask", in_place).mistakes == ("mask after softmax",)


def test_sizes_of_a_call_all_differ_and_inputs_are_drawn_from_the_seed(rng):
    for task in practice.EXERCISES.values():
        if task.name in ("kv-cache", "design-a-head"):
            continue
        for case in task.cases(rng):
            arrays = [value for value in case if isinstance(value, np.ndarray)]
            shape = max((array.shape for array in arrays), key=len)
            assert len(set(shape)) == len(shape), task.name
    draws: list[np.ndarray] = []

    def softmax(scores):
        draws.append(scores)
        return scores

    for seed in (3, 3, 4):
        practice.judge("softmax", softmax, seed=seed)
    assert np.array_equal(draws[0], draws[2]) and not np.array_equal(draws[0], draws[4])
    assert practice.judge("softmax", softmax).seed != practice.judge("softmax", softmax).seed


def test_solution_that_holds_the_whole_map_has_right_numbers_and_is_not_right():
    whole = (
        "import numpy as np\n\ndef streaming_attention(q, k, v, block):\n    s = q @ k.T / q.shape[1] ** 0.5\n"
        "    w = np.exp(s - s.max(1, keepdims=True))\n    return w @ v / w.sum(1, keepdims=True)\n"
    )
    verdict = judged("online-softmax", whole)
    assert not verdict.right and "it held" in verdict.words and "their whole map takes 6.0" in verdict.words


MODULE = "import numpy as np\n\ndef softmax(scores):\n    {}\n"


@pytest.mark.parametrize(("body", "words"), [
    ("return scores[9]", "softmax (learner.py, line 4) failed: IndexError: index 9 is out of bounds"),
    ("return scores + np.ones(3)", "It was called with scores [3, 5, 7]."),
    ("raise SystemExit", "softmax (learner.py, line 4) failed: SystemExit"),
    ("pass", "it returns None (is a return missing?): return an array of real numbers."),
    ("return 'weights'", "it returns a str: return an array of real numbers."),
    ("return [[1, 2], [3]]", "it returns a list of 2: return an array of real numbers."),
    ("return scores * 1j", "it returns a ndarray of shape [3, 5, 7]: return an array of real numbers."),
    ("return scores, scores", "it returns a tuple of 2: return the result alone."),
    ("return scores[0]", "It returns the shape [5, 7], and [3, 5, 7] is right."),
    ("return scores * np.nan", "result[0, 0, 0] is nan: look for exp of a large number"),
    ("return scores * 0 + 1 / 7", "numbers are wrong: result[0, 0, "),
])  # fmt: skip
def test_what_is_wrong_otherwise_is_one_message(body, words):
    verdict = judged("softmax", MODULE.format(body))
    assert not verdict.right and words in verdict.words and verdict.words.startswith("Not yet. ")
    assert "\n" not in verdict.words and not verdict.mistakes


@pytest.mark.parametrize(("name", "source", "words"), [
    ("kv-cache", "def step(q, k, v, cache):\n    return v", "return the output and the cache, two values."),
    ("kv-cache", "def step(q, k, v, cache):\n    n = 1 + (cache or 0)\n    return v[:n % 3 + 1], n",
     "another shape from step to step: [2, 5], [3, 5], [1, 5]. Return [h, f]."),
    ("design-a-head", "def previous_token_head(n, w):\n    return n",
     "it returns a int: return w_q and w_k, two matrices."),
    ("design-a-head", "import numpy as np\ndef previous_token_head(n, w):\n    return np.ones((n, 3)), np.ones((n, 3))",
     "of 8 numbers of a place."),
    ("design-a-head", "import numpy as np\ndef previous_token_head(n, w):\n    return 2 * [np.eye(n + 8)]",
     "90% is needed in each"),
])  # fmt: skip
def test_pair_that_cannot_be_judged_is_told_what_to_return(name, source, words):
    verdict = judged(name, source)
    assert not verdict.right and words in verdict.words


def test_points_of_a_right_solution_are_kept_unless_not_meant(monkeypatch, tmp_path):
    right = function_of(SOLUTIONS["causal-mask"].source, "causal_attention")
    wrong = function_of(SOLUTIONS["softmax"].source, "softmax")
    practice.judge("causal-mask", right, keep=False)
    assert Progress().points == {}
    practice.judge("causal-mask", right)
    practice.judge("causal-mask", wrong)
    assert Progress().points == {"practice": {"causal-mask": 2}}
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MANYHEADS_STATE", str(tmp_path / "file"))
    verdict = practice.judge("causal-mask", right)
    assert verdict.right and "Your points are not kept: cannot write" in verdict.words


def test_what_cannot_be_judged_at_all_is_refused():
    for arguments, words in (
        (("causal", None), "None (is a return missing?) is not a function: give causal_attention, without brackets"),
        (("causal-musk", len), "there is no exercise 'causal-musk'. Did you mean 'causal-mask'? There are: softmax, "),
        (("multi-head", len), "there is no exercise 'multi-head'."),
    ):
        with pytest.raises(ValueError) as refused:
            practice.judge(*arguments)
        assert words in str(refused.value)
    for seed in (-1, 2**31, True, 0.5):
        with pytest.raises(ValueError, match="is not a seed: give a whole number from 0 to 2,147,483,647"):
            practice.judge("softmax", len, seed=seed)
