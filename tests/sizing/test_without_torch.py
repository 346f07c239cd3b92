"""Sizing is arithmetic: it runs where torch, NumPy and transformers cannot be imported."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "numpy", "transformers", "pandas", "matplotlib", "jaxtyping", "einops"):
            raise ImportError(f"{name} is not here")

sys.meta_path.insert(0, Blocked())
"""


def without_torch(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", BLOCKED + program], capture_output=True, text=True, timeout=60)


@pytest.mark.turns(4)
@pytest.mark.parametrize("door", ["manyheads.sizing.sizing", "manyheads.models.dimensions"])
@pytest.mark.sampled(1)
def test_presets_and_descriptions(door):
    done = without_torch(
        f"from {door} import size\n"
        "from manyheads.sizing.presets import PRESETS\n"
        "for name in PRESETS: size(name).to_dict()\n"
        "print(size('llama-2-70b').num_parameters, size('llama-2-70b').cache.steady)\n"
        "print(size({'num_layers': 2, 'embed_dim': 48, 'num_heads': 6}).num_parameters)\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["68976648192", str(float(10 * 2**30)), "55536"]


def test_a_config_of_a_family_with_a_row(tmp_path):
    config = {"model_type": "qwen2", "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6}
    config |= {"num_key_value_heads": 2, "intermediate_size": 56, "vocab_size": 97, "tie_word_embeddings": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    done = without_torch(f"from manyheads.models.dimensions import size; print(size({str(tmp_path)!r}).num_parameters)")
    assert done.returncode == 0, done.stderr
    layer = 2 * 48 * 48 + 48 + 2 * (48 * 16 + 16) + 3 * 48 * 56 + 2 * 48
    assert int(done.stdout) == 97 * 48 + 2 * layer + 48


def test_a_spec():
    done = without_torch(
        "from manyheads.sizing.sizing import size\n"
        "from manyheads.spec import ModelSpec, Site\n"
        "spec = ModelSpec('m', 'M', (Site('', 0, 'x', 6, 2, 8, 8, True),), 48, 97, None, 20000, 'float32')\n"
        "print(size(spec, context=10, batch=1, dtype='fp32').cache.steady)\n"
    )
    assert (done.returncode, done.stdout) == (0, f"{float(4 * 10 * 2 * 16)}\n"), done.stderr


def test_a_family_without_a_row_says_what_would_be_needed(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "jamba"}')
    done = without_torch(
        "from manyheads.models.dimensions import size\n"
        "from manyheads.errors import ModelError\n"
        f"try: size({str(tmp_path)!r})\n"
        "except ModelError as error: print(error)\n"
    )
    assert done.returncode == 0, done.stderr
    assert "'jamba' is not among the" in done.stdout
    assert "With transformers installed, what it knows can be built and measured." in done.stdout


@pytest.mark.turns(4)
def test_the_command(tmp_path):
    done = without_torch("from manyheads.cli.main import main; raise SystemExit(main(['size', 'gpt2', '--json']))")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["parameters"]["total"] == 124_439_808


def test_sizing_loads_nothing_heavy():
    program = (
        "import sys; from manyheads.models.dimensions import size; size('gpt2').to_dict();"
        "print(*[name for name in ('torch', 'numpy', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
