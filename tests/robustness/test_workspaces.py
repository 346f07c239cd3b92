"""What a studio offers is what the command line named: nothing beside it, by no link."""

import json

import pytest

from manyheads.studio import NotHere, Workspace
from tests.robustness.faults import recording


def test_links_that_lead_out_of_a_folder_are_not_followed(tmp_path):
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside, outside / "model"):
        folder.mkdir(parents=True)
    for place in (inside / "a.heads", outside / "b.heads"):
        recording(1, 7).save(place)
    (outside / "model" / "config.json").write_text(json.dumps({"model_type": "bert"}))
    (inside / "b.heads").symlink_to(outside / "b.heads")
    (inside / "model").symlink_to(outside / "model")
    (inside / "same.heads").symlink_to(inside / "a.heads")
    found = Workspace.of([inside])
    assert set(found.files) == {"a.heads", "same.heads"} and "model" not in found.models
    with pytest.raises(NotHere, match="there is no recording 'b.heads' in this workspace"):
        found.file_of("b.heads")


def test_hidden_files_and_folders_are_not_offered(tmp_path):
    (tmp_path / ".cache").mkdir()
    for place in (tmp_path / ".a.heads", tmp_path / ".cache" / "b.heads", tmp_path / "c.heads"):
        recording(1, 7).save(place)
    assert set(Workspace.of([tmp_path]).files) == {"c.heads"}
