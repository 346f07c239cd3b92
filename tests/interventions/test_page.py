"""The page on pruning: its code runs."""

from manyheads.interventions import saving
from tests.test_docs import DOCS, code_of


def test_the_code_of_the_page_on_pruning_runs_from_top_to_bottom(tmp_path, monkeypatch):
    blocks, names = code_of(DOCS / "pruning.md"), {}
    assert len(blocks) == 3
    monkeypatch.chdir(tmp_path)
    fine = {"error": 0.0, "tokens": None, "wanted": None, "auto": True}  # test_saving tries folders in a fresh process
    monkeypatch.setattr(saving, "try_all", lambda jobs: [fine for _ in jobs])
    for block in blocks:
        exec(compile(block, "pruning.md", "exec"), names)
    assert names["saved"].form == "compact"
