"""What measures: bars judge what was measured, rounds are fair, and the check of devices finds what it should."""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks import tax
from benchmarks.bars import BARS, Bar, judged
from benchmarks.rounds import in_turns, medians, memory_bytes, ratio
from benchmarks.run import BEGIN, END, PAGE, RESULTS, RUNS, written
from benchmarks.same_numbers import compare, fingerprint, sums_of
from tools.house import COUNTED, Source, counted, measured, worst


def result(*lines):
    return {"lines": list(lines), "date": "2031-02-03", "machine": "a machine", "torch": "9"}


def one(results, what):
    return next(each for each in judged(results) if each.bar.what == what)


def test_every_bar_is_of_a_benchmark_and_has_a_limit():
    for bar in BARS:
        assert bar.run in RUNS and (bar.most, bar.least) != (None, None), bar
        assert bar.most is None or bar.least is None or bar.least < bar.most, bar


def test_a_bar_with_two_sides_is_missed_beyond_either():
    bar = Bar("layer", None, "x", "what", most=0.97, least=0.93)
    assert [bar.holds(value) for value in (0.929, 0.93, 0.97, 0.971, float("nan"))] == [False, True, True, False, False]


def test_a_figure_is_read_from_its_own_line_with_its_spread():
    name = "`measure`, texts of 8 to 128 tokens against equal ones, beyond the forward pass's"
    lines = [
        {"what": kind, "ratio": 3.0, "over_forward": {"ratio": ratio, "low": ratio - 0.1, "high": 2.0}}
        for kind, ratio in (("record", 1.1), ("measure", 1.14))
    ]
    found = one({"ragged": result(*lines)}, name)
    assert (found.value, found.met) == (1.14, True) and found.spread == pytest.approx((1.04, 2.0))
    assert found.measured == "1.14 (1.04-2) x"
    lines[1]["over_forward"]["ratio"] = 1.1501
    assert not one({"ragged": result(*lines)}, name).met


def test_at_least_is_a_floor_and_what_was_not_measured_is_not_met():
    for share, met in ((0.4, True), (0.399, False), (float("nan"), False)):
        found = one(
            {"roles": result({"what": "roles", "ratio": share})}, "sentences a second of all roles, against the pass"
        )
        assert found.met is met, share
    assert not any(each.met for each in judged({}))
    assert {each.verdict for each in judged({})} == {"not measured"}
    assert not one(
        {"roles": result({"what": "something else", "ratio": 9.0})}, "sentences a second of all roles, against the pass"
    ).met


@pytest.mark.parametrize(
    ("most", "least", "said"),
    [(1.5, None, "at most 1.5 GB"), (None, 0.25, "at least 0.25 GB"), (1.5, 0.25, "0.25 to 1.5 GB")],
)
def test_a_limit_says_its_side_and_unit(most, least, said):
    assert Bar("layer", None, "x", "what", most, least, "GB").limit == said


def test_the_page_says_what_the_results_say():
    table = PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0]
    assert table.strip() == written(json.loads(RESULTS.read_text(encoding="utf-8"))).strip(), (
        "python -m benchmarks.run --page"
    )


# =============================================================================================================== rounds
# Rounds time every call once and begin with another each; memory is a process' own.

ROOT = Path(__file__).parents[1]


def test_each_round_times_every_call_once_and_ratios_are_taken_within_one():
    called = []
    taken = in_turns({name: lambda name=name: called.append(name) for name in "abc"}, rounds=4)
    assert called == list("abcbcacababcbca"), "the first round warms up"
    assert {name: len(seconds) for name, seconds in taken.items()} == {"a": 4, "b": 4, "c": 4}
    assert min(min(seconds) for seconds in taken.values()) >= 0
    ours, theirs = [1.0, 6.0, 9.0, 2.0, 5.0], [2.0, 2.0, 3.0, 8.0, 5.0]
    assert ratio(ours, theirs) == {"ratio": 1.0, "low": 0.25, "high": 3.0}
    assert ratio(ours, theirs, "times_as_fast")["times_as_fast"] == 1.0
    assert medians({"ours": ours, "theirs": theirs}) == {"ours": 5.0, "theirs": 3.0}


def test_no_round_begins_that_would_not_be_over_in_time():
    seconds = in_turns({"a": lambda: time.sleep(0.05), "b": bool}, rounds=50, until=time.time() + 0.5)
    assert 1 <= len(seconds["a"]) < 10 and len(seconds["a"]) == len(seconds["b"])
    late = in_turns({"a": bool}, rounds=3, until=time.time() - 1)
    assert len(late["a"]) == 1, "the first that counts is made always"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read where Linux tells it")
def test_a_process_memory_is_not_its_parents():
    held = bytearray(b"1") * 300_000_000
    code = "from benchmarks.rounds import memory_bytes; print(memory_bytes('VmHWM'))"
    said = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert memory_bytes("VmHWM") > len(held) > 100_000_000 > int(said) > 0
    assert memory_bytes("VmHWM") >= memory_bytes("VmRSS") > len(held)


# ======================================================================================== tensors made without a device
# The check of tensors that are made without a device finds them, and nothing that says where it is.

MADE = {
    "x = torch.zeros(3)": 1, "x = torch.full((2,), 1.0, dtype=torch.long) + torch.arange(4)": 2,
    "x = y.new_zeros(3)": 0, 'x = torch.zeros(3, device="cpu")': 0, "x = torch.randn(3, generator=fresh)": 0,
    "x = torch.empty(3, **factory)": 0, "# device: tokens are the host's\nx = torch.zeros(3)": 0,
}  # fmt: skip


@pytest.mark.parametrize("package", ["recording", "cli"])
@pytest.mark.parametrize("source", MADE)
def test_a_tensor_without_a_device_is_found_where_tensors_of_a_model_are_met(source, package, tmp_path, capsys):
    folder = tmp_path / "manyheads" / package
    folder.mkdir(parents=True)
    (folder / "some.py").write_text(f"import torch\n{source}\n", encoding="utf-8")
    count = MADE[source] if package == "recording" else 0
    assert worst(tmp_path) == min(count, 1)
    assert capsys.readouterr().out.count("without a device") == count


# ======================================================================================== the figures of the house
# Each row of `tools.house`, counted in a small tree in which every row has a number of its own.

TREE = {
    "src/manyheads/__init__.py": '"""Front door."""\n__all__ = ["a", "b"]\na, b, c = 1, 2, 3\n'
    "def __dir__():\n    return [*__all__, 'c']\n",
    "src/manyheads/__init__.pyi": "from .low import one as one, two as two, three as three, four as four\n",
    "src/manyheads/errors.py": "class OneError(Exception): ...\n",
    "src/manyheads/low/__init__.py": "",
    "src/manyheads/low/__init__.pyi": "from .deep.down import one as one, two as two\n"
    "from .side import three as three\n",
    "src/manyheads/low/side.py": "def three(x: Any, *, y: Any = 0) -> int: ...\ndef four() -> Any: ...\n",
    "src/manyheads/low/deep/__init__.py": "",
    "src/manyheads/low/deep/down.py": "from typing import Any\none: Any = 1\nclass Two:\n    lm: Any\n    x: int\n"
    "def two(lm: Any, z: 'Any | None') -> list[Any]: ...\n",
    "src/manyheads/models/__init__.py": "",
    "src/manyheads/models/texts.py": "from manyheads.low import one\nfrom manyheads.low.side import three\n"
    "from manyheads.low.deep import down\nfrom ..low.deep.down import two, Two\nfrom manyheads.errors import OneError\n"
    "class Piece: ...\nclass Reading: ...\nclass Batch: ...\n",
    "src/manyheads/inputs/__init__.py": "",
    "src/manyheads/inputs/batch.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
    "    from manyheads.models import Piece\nclass Batch:\n    class Side: ...\n",
    "src/manyheads/edits/runner.py": "class Runner:\n    def over(self, x): ...\n    def run(self): ...\n"
    "def over(): ...\n",
    "src/manyheads/statistics/sums.py": "class Sums: ...\nclass RunningSums: ...\nclass Batch: ...\n"
    "class Reading: ...\n",
    "src/manyheads/statistics/measurement.py": '"""One."""\ndef measure(lm):\n    return sums_of(lm)\n'
    'def sums_of(lm):\n    """Two\n    lines."""\n    def inner():\n        return BatchReader(lm)\n    return inner\n'
    "def measure_call(lm):\n    return Measured(lm)\n",
    "src/manyheads/statistics/long.py": "def many(a, b, c, d, *, e, f, g, h):\n"
    '    """Takes a lot, of which a and b.\n\n    - `a`: one\n    - `b`: two\n    """\n'
    "class C:\n    def listed(self, a, b, c, d, e, f, g, h):\n"
    '        """Takes as much.\n\n        a: 1\n        - b: 2\n        `c`: 3\n        - `d`, 4\n        - e f\n'
    "        - f\n        - g\n        - h\n        \"\"\"\n    def few(self, a, b, c, d, e, f, g): ...\n"
    "def command(a, b, c, d, e, f, g, h: Annotated[int, typer.Option(help='as many')]): ...\n"
    'class D:\n    """D.\n\n    - a: 1\n    - b: 2\n    - c\n    - d\n    - e\n    - f\n    - g\n    - h\n    """\n'
    "    def __init__(self, a, b, c, d, e, f, g, h): ...\n",
    "pyproject.toml": "[[tool.importlinter.contracts]]\nid = 'other'\n[[tool.importlinter.contracts]]\nid = 'floors'\n"
    "layers = ['(edits)', '(statistics)', '(models) | (low)', 'inputs', 'errors']\n",
    "tests/test_some.py": "import pytest\nSOME = [1, pytest.param(2, marks=pytest.mark.slow)]\n"
    "slow = pytest.mark.slow\n"
    "def cases():\n    return [pytest.param(1, marks=[pytest.mark.slow])]\n"
    "@pytest.mark.parametrize('x', [1, 2])\ndef test_whole(x): ...\ndef test_plain(): ...\ndef helper(): ...\n"
    "@pytest.mark.parametrize('x', SOME)\ndef test_a(x): ...\n@slow\ndef test_b(): ...\n"
    "@pytest.mark.parametrize('x', cases())\ndef test_c(x): ...\n@pytest.mark.turns(4)\ndef test_d(): ...\n"
    "class TestIt:\n    @pytest.mark.thinned\n    def test_e(self): ...\n    def test_whole_too(self):\n"
    "        SOME = 1\n@pytest.mark.sampled(3)\ndef test_f(): ...\n",
    "tests/deep/test_all.py": "import pytest\npytestmark = pytest.mark.slow\ndef test_never(): ...\n",
}  # fmt: skip
ROWS = {
    "imports between packages": 5,  # of models: low, low.side, low.deep.down, errors; of inputs: models
    "of them past a face": 2,  # low.side and low.deep.down
    "names of the largest face": 3,
    "arrows between packages that go up": 2,  # models -> low beside it, inputs -> models above it
    "names of mh.__all__": 2,
    "of dir(mh), missing or besides": 1,
    "`: Any` and `-> Any`": 6,
    "`lm: Any`": 2,
    "classes that are an input to a model": 3,  # Piece and Reading of models.texts, Batch of inputs
    "classes that are sums of statistics": 3,  # Sums, RunningSums, Batch
    "loops that run a model under edits": 1,  # Runner.over, and not `over`
    "bodies of `measure`": 2,  # sums_of and measure_call, but `measure` only calls
    "functions of 8 or more arguments, not listed": 1,
    "functions of tests": 10,
    "of them run whole, always, %": 30.0,
}


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    folder = tmp_path_factory.mktemp("house")
    for name, text in TREE.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return measured(folder / "src", folder / "tests", walk=False)


@pytest.mark.parametrize("row", ROWS)
def test_figures_of_a_small_house_are_counted_as_their_docstring_says(house, row):
    assert house["figures"][row] == ROWS[row]


def test_the_house_says_what_it_counted(house):
    assert house["counted"] == {
        "classes that are an input to a model": [
            "inputs.batch.Batch", "models.texts.Piece", "models.texts.Reading",
        ],
        "classes that are sums of statistics": [f"statistics.sums.{name}" for name in ("Batch", "RunningSums", "Sums")],
        "loops that run a model under edits": ["edits.runner.Runner.over"],
        "bodies of `measure`": [f"statistics.measurement.{name}" for name in ("measure_call", "sums_of")],
    }  # fmt: skip
    assert house["past a face"] == [
        "manyheads.models.texts -> manyheads.low.deep.down", "manyheads.models.texts -> manyheads.low.side",
    ]  # fmt: skip
    assert house["largest face"] == "manyheads.low" and house["of dir(mh), missing or besides"] == ["c"]
    assert house["arrows that go up"] == ["inputs -> models", "models -> low"]
    assert house["arguments not listed"] == ["manyheads.statistics.long.many"]
    lines = sum(text.count("\n") for name, text in TREE.items() if name.endswith(".py") and name.startswith("src"))
    docstrings = 1 + 1 + 2 + 5 + 11 + 11
    assert house["figures"]["docstrings, % of lines"] == round(100 * docstrings / lines, 1)
    assert house["figures"]["the same, per 1,000 lines"] == round(6000 / lines, 1)


@pytest.mark.slow  # all sources are read
def test_what_the_house_counts_by_name_is_in_the_source():
    sources = [Source(path, ROOT / "src") for path in (ROOT / "src").rglob("*.py")]
    for what, table in COUNTED.items():
        assert counted(sources, table), f"no name of {what} is left: give those of today in COUNTED"


# ========================================================================================================= same numbers
# Two versions are compared to the last bit: a document that differs, is absent or names another array is said.


def test_a_fingerprint_tells_one_bit_the_shape_and_the_dtype_apart():
    array = np.arange(1.0, 7.0).reshape(2, 3)
    others = [np.nextafter(array, 9), array.reshape(3, 2), array.astype(np.float32), array.T.copy(), -array]
    assert len({fingerprint(array), *map(fingerprint, others)}) == 6
    assert fingerprint(array) == fingerprint(array.copy()) and fingerprint(array.T) == fingerprint(array.T.copy())


def test_documents_that_differ_are_told_with_place_and_values(tmp_path, capsys):
    for name, document in {
        "one/same.json": {"a": [0.1, 0.2]}, "two/same.json": {"a": [0.1, 0.2]}, "two/more.json": {},
        "one/sums.json": {"sums": {"num": "x", "den": "y"}, "b": [1, 2]},
        "two/sums.json": {"sums": {"num": "z"}, "b": [1]},
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(document))
    assert compare(tmp_path / "one", tmp_path / "two") == 1
    out = capsys.readouterr().out
    for words in (".sums.num: x -> z", ".sums.den: y -> (absent)", ".b: [1, 2] -> [1]", f"only in {tmp_path / 'two'}"):
        assert words in out, out
    assert "1 of 3 files are the same" in out
    assert compare(tmp_path / "one", tmp_path / "one") == 0


@pytest.mark.slow  # all statistics, three times
def test_sums_of_a_model_are_written_whole_and_the_same_each_time():
    first = sums_of("tiny-code")
    assert json.loads(json.dumps(first)) == sums_of("tiny-code")
    assert list(first) == ["all", "max_logit*", "corpus", "saved"]
    assert {"num", "den", "moments", "maxima", "kinds.mass"} <= set(first["saved"])
    for table, width in (("all", 0), ("max_logit*", 3), ("corpus", 0)):
        heads = len(first[table]["heads"])
        assert set(first[table]["kinds"]) == {"ids", "mark", "mass", "even"}
        assert first[table]["sums"]["maxima"].startswith(f"float64 [2, {heads}, {width}] ")
        assert all(len(values) == 3 and len(values[0]) == heads for values in first[table]["values"].values())


# ================================================================================================================ tax
# What statistics cost is compared with the same numbers from the model's own maps, and each of its bars finds its line.

SMALL = {
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "hidden_size": 48,
    "intermediate_size": 31,
    "initializer_range": 0.4,  # maps that are far from even
}


def test_tax_times_the_same_three_statistics_of_unlike_texts():
    case = tax.Case([5, 13, 8], {"three": tax.THREE, "record": None}, SMALL)
    calls, apart = tax.calls_of(case)
    assert list(calls)[:4] == ["plain", "three", "record", "eager maps"], "texts of unlike lengths are no batch"
    assert 0 < apart < tax.SAME
    table, by_maps, recording = calls["three"](), calls["eager maps"](), calls["record"]()
    ours = np.stack([table.column(name) for name in tax.THREE], -1)
    assert np.allclose(ours, by_maps, atol=1e-5, rtol=1e-5) and ours.shape == (18, 3)
    assert np.ptp(ours, axis=0).min() > 0.05, "heads differ in each, so that heads in another order would not pass"
    assert [layer.lengths.tolist() for layer in recording.layers] == [[5, 13, 8]] * 3


def test_texts_of_one_length_are_read_in_one_batch_by_the_plain_pass_and_for_the_maps():
    calls, apart = tax.calls_of(tax.Case([7, 7, 7], {"three": tax.THREE}, SMALL))
    assert list(calls)[:4] == ["plain", "each by itself", "three", "eager maps"] and 0 < apart < tax.SAME


def test_tax_of_other_numbers_ends_with_an_error(monkeypatch):
    three_of = tax.three_of
    monkeypatch.setattr(tax, "three_of", lambda maps: three_of(maps) + 1e-3)
    with pytest.raises(SystemExit, match="small: our entropy, distance, previous_mass are 0.001 from those of"):
        tax.line_of("small", tax.Case([6, 9], {"three": tax.THREE}, SMALL), rounds=1)


def test_each_bar_of_the_tax_is_read_from_a_line_that_the_tax_prints():
    ratio = {"ratio": 1.1, "low": 1.0, "high": 1.2}
    lines = [
        {"what": name, **dict.fromkeys([*case.ours, *(["eager maps"] * case.others)], ratio)}
        for name, case in tax.CASES.items()
    ]
    found = [each for each in judged({"tax": result(*lines)}) if each.bar.run == "tax"]
    assert len(found) == sum(len(case.ours) for case in tax.CASES.values()) == 9
    assert {each.verdict for each in found} == {"met"}
    assert {each.measured for each in found} == {"1.1 (1-1.2) x", "1.1 (1-1.2) x; eager maps 1.1"}
    lines[0]["three"] = {"ratio": 1.5}
    assert not one({"tax": result(*lines)}, found[0].bar.what).met


def test_tax_refuses_a_case_that_is_none(capsys):
    with pytest.raises(SystemExit):
        tax.main(["unlike", "8192"])
    assert "there is no case 8192: give some of paragraphs, unlike, 512, 2048, 4096" in capsys.readouterr().err
