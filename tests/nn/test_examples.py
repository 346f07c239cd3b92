"""The examples run, in small, and do what they say."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, *arguments: str):
    spec = spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
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
    assert {path.stem for path in EXAMPLES.glob("*.py")} >= set(SMALL)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.sampled(2)
def test_the_example_runs(name, capsys):
    run(name, *SMALL[name])
    assert capsys.readouterr().out


@pytest.mark.slow
def test_the_examples_learn_what_they_set_out_to():
    assert run("transformer_block") < 0.2
    assert run("encoder_decoder") > 0.95
    assert "the mat because it was tired. the cat sat on the mat" in run("generate")
