"""What the Tab key offers: as a shell asks, and held to the models and tables that the names are of."""

import json
import os
import subprocess
import sys

import pytest
import typer
from typer.core import TyperCommand

from manyheads.cli import completion
from manyheads.cli.commands import NAMES
from manyheads.models.loading import bundled
from manyheads.sizing import PRESETS
from manyheads.statistics import NAMED


def offered(line, shell="bash"):
    """What `manyheads` answers to a shell whose user typed this line and pressed Tab."""
    words = line.split(" ")
    asks = {
        "bash": {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1), "_MANYHEADS_COMPLETE": "complete_bash"},
        "zsh": {"_TYPER_COMPLETE_ARGS": line, "_MANYHEADS_COMPLETE": "complete_zsh"},
    }
    program = "import sys; from manyheads.cli.main import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | asks[shell], capture_output=True, text=True, timeout=120
    )
    assert not done.stderr, done.stderr
    return done.stdout


def test_shell_is_offered_commands_options_and_heads():
    assert offered("manyheads ").split() == [*NAMES]
    assert offered("manyheads head L2 --model minilm --js").split() == ["--json"]
    assert offered("manyheads ablate --model tiny-code L3").split() == [f"L3H{head}" for head in range(8)]
    assert "L1H4" in offered("manyheads ablate L1", "zsh")


def test_heads_are_those_of_the_model_that_the_line_names(tmp_path):
    def heads(incomplete, model=None):
        context = typer.Context(TyperCommand("ablate"))
        context.params = {"model": model}
        return completion.heads(context, incomplete)

    assert heads("", "tiny-code") == ["L0", "L1", "L2", "L3"] and heads("L1", "minilm")[-1] == "L1H11"
    assert heads("L0H1,L5H1", "minilm") == ["L0H1,L5H1", "L0H1,L5H10", "L0H1,L5H11"]
    assert heads("L9", "minilm") == heads("L1H", "no/such/folder") == heads("L6H0", "minilm") == []
    (tmp_path / "config.json").write_text(json.dumps({"n_layer": 3, "n_head": 5}))
    assert heads("", str(tmp_path)) == ["L0", "L1", "L2"] and heads("L2H", str(tmp_path))[-1] == "L2H4"
    (tmp_path / "config.json").write_text("[1, 2")
    assert heads("", str(tmp_path)) == []


@pytest.mark.parametrize("name", [name for name in completion.SHAPES if name != "smollm2"])
def test_shapes_of_bundled_models_are_the_models_own(name):
    assert completion._shape(str(bundled.find_bundled(name))) == completion.SHAPES[name]


@pytest.mark.slow
def test_shape_of_smollm2_is_its_own():
    assert completion._shape(str(bundled.find_bundled("smollm2"))) == completion.SHAPES["smollm2"]
    assert completion.SHAPES.keys() >= bundled.BUNDLED.keys()


def test_names_after_a_comma_and_presets_come_from_their_tables():
    assert completion.statistics("entropy,dist") == [f"entropy,{name}" for name in NAMED if name.startswith("dist")]
    assert completion.statistics("def") == ["default"] and completion.models("mini") == ["minilm"]
    assert completion.sized("smo") == ["smollm2"] and completion.sized("minilm") == ["minilm"]
    assert completion.sized("llama-2") == [name for name in PRESETS if name.startswith("llama-2")] != []
