"""The check of tensors that are made without a device finds them, and nothing that says where it is."""

import pytest

from benchmarks.house import worst

MADE = {
    "x = torch.zeros(3)": 1,
    "x = torch.full((2,), 1.0, dtype=torch.long) + torch.arange(4)": 2,
    "x = y.new_zeros(3)": 0,
    'x = torch.zeros(3, device="cpu")': 0,
    "x = torch.randn(3, generator=fresh)": 0,
    "x = torch.empty(3, **factory)": 0,
    "# device: tokens are the host's\nx = torch.zeros(3)": 0,
}


@pytest.mark.parametrize("package", ["recording", "cli"])
@pytest.mark.parametrize("source", MADE)
def test_a_tensor_without_a_device_is_found_where_tensors_of_a_model_are_met(source, package, tmp_path, capsys):
    folder = tmp_path / "manyheads" / package
    folder.mkdir(parents=True)
    (folder / "some.py").write_text(f"import torch\n{source}\n", encoding="utf-8")
    count = MADE[source] if package == "recording" else 0
    assert worst(tmp_path) == min(count, 1)
    assert capsys.readouterr().out.count("without a device") == count
