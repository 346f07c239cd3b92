"""The examples run, in small, and do what they say."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.util import module_from_spec, spec_from_file_location
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from examples.make import (
    BY_HAND,
    EXAMPLES,
    SOLVED,
    SOURCES,
    badge,
    install_cell,
    notebook_of,
    plain,
    run,
    with_start,
)
from tests.refusals import refuses

FOLDER = Path(__file__).parents[2] / "examples"


def run_small(name: str, *arguments: str):
    spec = spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.main(list(arguments))


SMALL = {
    "transformer_block": ["--steps", "2", "--embed-dim", "16"],
    "encoder_decoder": ["--steps", "2", "--length", "3"],
    "generate": ["--steps", "2", "--count", "12"],
    "naive_and_batched": ["--batch", "2", "--length", "7", "--embed-dim", "12", "--heads", "3", "--rounds", "1"],
}


def test_every_example_is_tried():
    assert {path.stem for path in FOLDER.glob("*.py")} >= set(SMALL)


@pytest.mark.parametrize("name", SMALL)
def test_the_example_runs(name, capsys):
    run_small(name, *SMALL[name])
    assert capsys.readouterr().out


@pytest.mark.slow
def test_the_examples_learn_what_they_set_out_to():
    assert run_small("transformer_block") < 0.2
    assert run_small("encoder_decoder") > 0.95
    assert "the mat because it was tired. the cat sat on the mat" in run_small("generate")


# ============================================================================================================ notebooks
# The notebooks run, anywhere, and what they tell is so: a story whose facts are not held to is a fairy tale.
#
# Each is run from its source in an empty folder; then a cell of ours asks its kernel for what the prose says.

LARGEST_BYTES = 300_000  # of a notebook with its pictures: what a repository's page still shows at once
CELLS = range(8, 33)
NUMBER = re.compile(r"[+-]?\d[\d,.]*(?:e[+-]?\d+)?")

PROJECT = tomllib.loads((EXAMPLES.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]

FACTS = {
    "read_heads": """
        import torch
        ids = lm.tokenizer(text, return_tensors="pt")
        lm.model.set_attn_implementation("eager")
        maps = lm.model(**ids, output_attentions=True).attentions
        assert torch.allclose(weights, maps[2][0, 9], atol=1e-5)
        assert abs(by_hand - float(maps[2][0, 9, last, first])) < 1e-5 and by_hand > 0.3
        best = roles.ranked("duplicate token")[0]
        assert str(best.head) == "L2H9" and best.holds and best.score > 3 * best.chance
        assert str(frame.nlargest(1, "previous_mass")["head"].iloc[0]) == "L0H2"
        assert sum(counts.values()) == 72 and counts["duplicate token"] >= 1
        assert found.share_of_controls_above >= 0.25
    """,
    "ablate_and_prune": """
        assert abs(silent - cut) < 1e-5 and silent - whole > 0.1
        assert abs(loss(again.model) - cut) < 1e-6 and abs(loss(stock) - cut) < 1e-5
        assert small.spec.num_parameters < lm.spec.num_parameters == 2_754_816 and saved.form == "compact"
        assert loss(lm.model) == whole
        assert not set(choosing) & set(judging)
        assert one.low < 0 < one.high and one.share_of_controls_above >= 0.25
        assert pieces[one.per_token[0].argmax()] == "values"
        assert all(curves[0][-1] < each[-1] for each in curves[1:]) and curves[0][-1] > 1
    """,
    "design_a_head": """
        last = len(pieces) - 2
        seen = {pieces[at] for at, share in enumerate(rec.layers[1].weights(head=0)[last]) if share > 0.1}
        assert pieces[last] == "red" and seen == {"moon", "bird"}
        assert both["L1H0", "induction_mass"] > 0.99 and alone["L1H0", "induction_mass"] < 0.1
        assert len(least) == 18 and all(least[each] >= promised[each] - 1e-6 for each in least)
        assert least[500, 1] < 0.5 < 0.95 < least[500, 10]
        assert str(table.heads[table["previous_mass"].argmax()]) == "L1H2" and sorted(table["previous_mass"])[-2] < 0.3
    """,
    "long_text": """
        assert abs(float(row.double().sum()) - 1) < 1e-4 and tuple(row.shape) == (1, n)
        scores = kept.q[0, 0, n - 1].double() @ kept.k[0, 0].double().T * kept.rule.scale
        assert torch.allclose(row[0].double(), scores.softmax(-1), atol=1e-6)
        assert numbers * 4e-9 < map_gigabytes(n, heads) / 500
        assert abs(float(received.double().sum()) - n) < 0.01 * n
        assert abs(float(even.sum()) - n) < 1e-6 * n
        assert "windows of 4096" in table.notes["windows"]
        assert curves[strongest[0], 0] > 0.3 and curves[:, -1].max() < 0.01 and min(back) < 50 < 1_000 < max(back)
        assert {f"L3H{head}" for head in strongest} == set(frame.nlargest(4, "induction_mass")["head"])
    """,
    "own_module": """
        assert right(net, test) > 0.99
        assert scores[0] < 0.2 and float(grown[0].max()) < 0.2 and float(grown[-1].min()) > 0.7
        ids = test[:1]
        x = net.letters(ids) + net.places(torch.arange(LENGTH))
        q, k, _ = net.attention.project(x).view(1, LENGTH, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        hidden = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        maps = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(hidden, float("-inf")).softmax(-1)[0]
        assert all(torch.allclose(layer.weights(head=head), maps[head], atol=1e-5) for head in range(HEADS))
        assert torch.allclose(two_before(net, ids), maps.diagonal(-2, 1, 2).mean(-1), atol=1e-5)
        with mh.applied(net, mh.Ablate("L0")):
            assert right(net, test) < 0.2
        for head in range(HEADS):
            with mh.applied(net, mh.Ablate(f"L0H{head}")):
                assert right(net, test) > 0.95
        assert without > 0.95 > alone > 0.5
        assert type(net.attention) is not ByHand and torch.allclose(by_hand.weights(), maps, atol=1e-5)
    """,
    "remaining_life": """
        assert fleet.simulated and "SIMULATED" in fleet.name
        assert max(rmse(each, truth) for each in (*said.values(), ridge)) < rmse(mean, truth)
        sizes = [sum(each.numel() for each in nets[attention, 0].parameters()) for attention in (True, False)]
        assert sizes[0] > sizes[1]
        assert torch.allclose(read.sum(-1), torch.ones(len(test.left), 8), atol=1e-4)
        near, others = late[worn].mean(0), late[~worn].mean(0)
        assert near.max() > 0.4 and near.min() < 0.3 and 0.3 < others.min() < others.max() < 0.4
        with mh.applied(net, mh.Ablate("L0")):
            assert rmse(predicted(net, test.cycles, CAP), truth) > whole + 5
    """,
    "which_variable_comes_next": """
        import torch
        ids = [lm.tokenizer(each[0], return_tensors="pt")["input_ids"] for each in (clean, corrupted)]
        name, size = (lm.tokenizer(word, add_special_tokens=False)["input_ids"][0] for word in answers[0][::-1])
        output, seen = lm.model.get_submodule("model.layers.3.self_attn.o_proj"), []
        width = output.in_features // 8
        part = slice(width * carrier.index, width * carrier.index + width)
        def said(tokens, hook):
            handle = output.register_forward_pre_hook(hook)
            with torch.no_grad():
                logits = lm.model(tokens).logits[0, -1]
            handle.remove()
            return float(logits[size] - logits[name])
        def patch_in(module, args):
            x = args[0].clone()
            x[..., part] = seen[0][..., part]
            return (x,)
        top = said(ids[0], lambda module, args: seen.append(args[0].clone()))
        low_end, between = said(ids[1], lambda module, args: None), said(ids[1], patch_in)
        assert abs(top - patching.clean[0]) < 1e-3 and abs(low_end - patching.corrupted[0]) < 1e-3
        row = patching.per_text[0][patching.head_place(carrier)]
        assert abs((between - low_end) / patching.gap - row) < 1e-4 and str(carrier) == "L3H5"
        assert attribution.error < 1e-4 and parts["v"] > 0.25 > 0.1 > abs(parts["weights"]) and place == 26
        assert {str(path.senders[0]) for path in paths[:2]} == {"L0H1", "L0H5"}
        assert circuit.faithfulness > max(circuit.random) + 0.2 and abs(circuit.without) < 0.1 and len(inside) < 12
        assert whole > 1 and abs(without) < 0.5 * min(beside)
    """,
    "ioi_solutions": """
        output, kept_out = lm.model.model.layers[23].self_attn.o_proj, []
        def difference(name, hook):
            handle = output.register_forward_pre_hook(hook)
            with torch.no_grad():
                last = lm.model(ids[name]).logits[:, -1].numpy()
            handle.remove()
            return last[range(8), right] - last[range(8), wrong]
        def put(module, args):
            x = args[0].clone()
            x[..., 192:256] = kept_out[0][..., 192:256]
            return (x,)
        top = difference("clean", lambda module, args: kept_out.append(args[0].clone()))
        low_end, between = difference("other", lambda module, args: None), difference("other", put)
        assert abs(top - levels["clean"]).max() < 1e-3 and abs(low_end - levels["other"]).max() < 1e-3
        assert abs((between - low_end).mean() / (top - low_end).mean() - patching["L23H3"]) < 1e-4
        lm.model.set_attn_implementation("eager")
        with torch.no_grad():
            maps = lm.model(ids["clean"], output_attentions=True).attentions
        assert all(torch.allclose(rec.layers[n].weights(text=3), maps[n][3], atol=1e-4) for n in (8, 17, 23))
        assert [f"L{place // 9}H{place % 9}" for place in order[:2]] == ["L23H3", "L29H1"]
        assert seen[23, 3, 1] > 0.6 > 0.3 > seen[23, 3, 0] and min(seen[23, 0, 0], seen[24, 4, 0], seen[20, 0, 1]) > 0.6
        assert copies["L23H0"] > 0.9 and copies["L23H3"] == copies["L24H4"] == 0
        assert written[:, 24, 4].mean() < -0.5 and seen[17, 4, 3] > 0.8
        assert parts["v"]["L20H0"] > 0.2 > 0.05 > abs(parts["q"]["L20H0"]) and parts["q"]["L17H4"] > 0.15
        assert whole > 5 and without < 0.1 * min(beside) and kept.faithfulness > 0.8 > 0.2 > max(kept.random)
    """,
    "worksheet": """
        from manyheads.lab.lessons.shelf import right_of
        said = {number: right_of(*each, {}, load).answer for number, each in asked.items()}
        assert said["A1"] == "stay as they are" and said["A2"] == "become more uneven"
        tokens, (d, h) = int(asked["B1"][2]["tokens"]), (int(asked["C1"][2][name]) for name in ("d_model", "heads"))
        assert said["B1"] == tokens * (tokens + 1) / 2 and said["C1"] == 3 * d * d / h
        size = {name: int(value) for name, value in asked["C2"][2].items()}
        held = 2 * 2 * size["layers"] * size["kv_heads"] * size["width"] * size["batch"] * size["context"]
        assert abs(said["C2"] * 2**30 - held) < 1
        page, check, inputs = asked["C1"]
        assert answer(page, check, f"{said['C1']:.0f}", load, inputs=inputs).right
        assert not answer(page, check, f"{said['C1'] + 1:.0f}", load, inputs=inputs).right
        most = [max(measured, key=lambda name: measured[name][at]) for at in (0, 1)]
        assert most == ["X", "Y"] and measured["Z"][2] > 0.5 and set(shuffled) == set(HEADS)
        for the, before in ((3, "lost"), (12, "under")):
            row = rec.layers[1].weights(head=11)[the]
            assert pieces[the] == "the" and pieces[int(row[1:].argmax()) + 1] == before
        assert all(word in told["D, rows"] for word in ("Row 1 is Y", "Row 2 is Z", "Row 3 is X"))
    """,
}


def kept(name):
    return nbformat.read(EXAMPLES / f"{name}.ipynb", 4)


def sources(notebook):
    return [(cell.cell_type, cell.source) for cell in notebook.cells]


def shown(notebook):
    """What each cell of code prints, its numbers left out, and what kinds of pictures it draws."""
    told = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            printed = "".join(each.text for each in cell.outputs if each.output_type == "stream")
            kinds = [sorted(each.data) for each in cell.outputs if "data" in each]
            told.append((" ".join(NUMBER.sub("#", printed).split()), kinds))
    return told


def test_every_notebook_has_a_source_facts_and_a_line_in_the_docs():
    page = Path(EXAMPLES.parent / "docs" / "examples.md").read_text(encoding="utf-8")
    there = {path.stem for path in EXAMPLES.glob("*.ipynb")}
    assert there == {*SOURCES, *SOLVED, *BY_HAND} and set(SOURCES) == set(FACTS)
    assert all(f"examples/{name}.ipynb" in page for name in there)


@pytest.mark.parametrize("name", SOURCES)
def test_the_notebook_is_its_source_with_pictures_and_without_places(name):
    notebook = kept(name)
    nbformat.validate(notebook)
    made = with_start(notebook_of(SOURCES[name].read_text(encoding="utf-8")), name)
    assert sources(notebook) == sources(made), "python examples/make.py"
    assert len(notebook.cells) in CELLS
    written = (EXAMPLES / f"{name}.ipynb").read_text(encoding="utf-8")
    assert len(written.encode()) < LARGEST_BYTES
    assert '"image/png"' in written and not re.search(r'/tmp/|/home/|/root/|\\\\Users|"stderr"', written)


@pytest.mark.parametrize("name", [*SOURCES, *SOLVED, *BY_HAND])
def test_notebook_begins_with_the_cell_that_installs_and_it_did_nothing_here(name):
    first, install, *others = kept(name).cells
    assert first.cell_type == "markdown" and install.outputs == []
    assert install.source == install_cell("".join(cell.source for cell in others), PROJECT).source
    again = with_start(kept(name), name)
    assert sources(again) == sources(kept(name)) and [cell.id for cell in again.cells].count("install") == 1


class Shell:
    """Stands for IPython: runs a cell's Python, and keeps what it would hand to pip and to a shell."""

    def __init__(self, is_installed: bool):
        self.is_installed, self.lines = is_installed, []

    def find_spec(self, name):
        return SimpleNamespace(origin="/a/place" if self.is_installed else None)  # None: of a folder of that name

    def run(self, cell, monkeypatch):
        monkeypatch.setattr("importlib.util.find_spec", self.find_spec)
        monkeypatch.setattr("importlib.metadata.version", lambda name: f"{len(name)}.1+local")
        python = re.sub(r"^( *)(%pip|!)(.*)$", r"\1lines.append(f'\2\3')", cell, flags=re.MULTILINE)
        exec(python, {"lines": self.lines})
        return self.lines


def test_cell_that_installs_keeps_what_is_there_and_does_nothing_where_nothing_is_missing(monkeypatch):
    cell = install_cell('lm = mh.load("minilm")', {}).source
    assert Shell(is_installed=True).run(cell, monkeypatch) == []
    pip, fetch = Shell(is_installed=False).run(cell, monkeypatch)
    kept_versions = "torch==5.1+local transformers==12.1+local numpy==5.1+local pandas==6.1+local"
    assert pip == f'%pip install --quiet "./manyheads-main[studio]" {kept_versions}'
    assert fetch == "!manyheads fetch minilm"
    assert len(Shell(is_installed=False).run(install_cell("", {}).source, monkeypatch)) == 1


def test_cell_installs_from_the_repository_where_one_is_named(monkeypatch):
    project = {"urls": {"Repository": "https://github.com/some/one"}}
    (pip,) = Shell(is_installed=False).run(install_cell("", project).source, monkeypatch)
    assert pip.startswith('%pip install --quiet "manyheads[studio] @ git+https://github.com/some/one" torch==')


@pytest.mark.parametrize(("name", "solved"), SOLVED.items())
def test_notebook_of_exercises_is_the_solved_one_with_stubs_and_folded_solutions(name, solved):
    exercises, solutions = kept(name), kept(solved)
    nbformat.validate(exercises)
    assert sources(exercises) == sources(with_start(plain(name), name)), "python examples/make.py"
    assert not any(cell.get("outputs") for cell in exercises.cells)
    tasks = [cell for cell in solutions.cells if "exercise" in cell.metadata.get("tags", ())]
    others = [cell.source for cell in exercises.cells if not cell.id.endswith("-solution")]
    assert len(tasks) == 8 and len(exercises.cells) == len(solutions.cells) + len(tasks)
    for cell, source in zip(solutions.cells, others, strict=True):
        assert (cell.source == source) == (cell not in tasks)
    for task, (stub, fold) in zip(tasks, folded(exercises), strict=True):
        function, _, judged = task.source.partition("\n\n\n")
        assert stub.endswith(f'"""\n    ...\n\n\n{judged}') and stub.splitlines()[:2] == function.splitlines()[:2]
        assert fold == f"<details><summary>Solution</summary>\n\n```python\n{function}\n```\n\n</details>"


def folded(notebook):
    """Each stub, and the solution behind it."""
    cells = notebook.cells
    return [(one.source, two.source) for one, two in pairwise(cells) if two.id.endswith("-solution")]


def test_badge_opens_the_notebook_from_the_repository_that_the_project_names():
    assert badge("long_text", {"name": "manyheads"}) == ""
    assert badge("long_text", {"urls": {"Repository": "https://example.org/a/b"}}) == ""
    assert badge("long_text", {"urls": {"Repository": "https://github.com/some/one/"}}).endswith(
        "(https://colab.research.google.com/github/some/one/blob/main/examples/long_text.ipynb)"
    )


def test_versions_of_colab_are_in_the_ranges_that_the_project_allows():
    """As of November 2026. pip keeps a version in the range; one outside it would be replaced, or refused."""
    colab = {"torch": "2.11.0", "transformers": "5.15.1", "numpy": "2.1.0", "pandas": "2.2.2"}
    ranges = {entry.name: entry.specifier for entry in map(Requirement, PROJECT["dependencies"])}
    assert [name for name, version in colab.items() if version not in ranges[name]] == []
    assert "3.12" in SpecifierSet(PROJECT["requires-python"])


@pytest.mark.slow
@pytest.mark.parametrize("name", SOURCES)
def test_the_notebook_runs_shows_what_was_kept_and_tells_the_truth(name, tmp_path):
    notebook = with_start(notebook_of(SOURCES[name].read_text(encoding="utf-8")), name)
    notebook.cells.append(new_code_cell(cleaned(FACTS[name])))
    ran = run(notebook, tmp_path)
    ran.cells.pop()
    assert shown(ran) == shown(kept(name))


def cleaned(facts):
    return "\n".join(line[8:] for line in facts.strip("\n").splitlines())


def test_a_cell_that_fails_ends_the_run(tmp_path):
    wrong = notebook_of(
        '"""."""\n\n# %%\nprint(1)\n\n# %%\nassert 1 + 1 == 3, "told wrongly"\n\n# %%\nopen("after", "w")\n'
    )
    refuses(CellExecutionError, "told wrongly", run, wrong, tmp_path)
    assert wrong.cells[0].outputs[0].text == "1\n" and not (tmp_path / "after").exists()
