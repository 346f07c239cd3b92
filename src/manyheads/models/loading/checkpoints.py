"""Where a model's files lie (bundled, a folder, the hub), and whether they can be loaded safely.

`find_checkpoint` turns a name into a folder, reads its config.json, and makes sure that there are weights, and that
they are safetensors. A loader's own error comes late and speaks of its insides, so each common mistake (a name with a
slip of the finger, no network, a folder with half a model in it, an adapter, a pickle) gets one line here, before
anything is built. To load a pickle is to run the code inside it: it is never opened, only named, with the line that
converts it. The hub is asked only for what is not on this machine: its cache comes first, so that the same name means
the same weights tomorrow, and so that nothing waits for a network that is not there.

`quietly` silences transformers while it loads.
"""

import gc
import json
import logging
import os
import re
import shlex
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyheads import private_names
from manyheads.base import few, nearest, read_bytes
from manyheads.base import first_line as line_of
from manyheads.errors import FileAccessError, ModelError
from manyheads.models.loading.bundled import BUNDLED, find_bundled
from manyheads.sizing.architecture import parsed

if TYPE_CHECKING:
    from manyheads.models.loading.gguf.file import GgufFile

_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pruned.safetensors")  # the last: see `compact`
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_TRAINING = ("training_args", "optimizer", "scheduler", "scaler", "rng_state")  # pickles, but of no weights
# What is fetched from the hub: everything small that a model or a tokenizer may need, and the weights in one format.
_SMALL = ("*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken", "tokenizer*")
_LARGE = ("model.safetensors", "model-*.safetensors", "pruned.safetensors")
GGUF = ".gguf"
_PART = re.compile(r"-\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)
_OF_TOKENIZERS = ("tokenizer", "vocab", "spiece", "sentencepiece")
_HUB_TIMEOUT_SECONDS = 10


@dataclass(frozen=True)
class Checkpoint:
    """A folder from which a model can be loaded. `name` is what to call it, `because` where it was found, `shards` the
    files of its weights. `gguf`: the one file that is the whole model, where it is one of those. `commit`: of a model
    of the hub, its commit; "" of others."""

    folder: Path
    name: str
    because: str
    config: dict[str, Any] = field(default_factory=dict, repr=False)  # config.json, as written
    shards: tuple[str, ...] = ()
    gguf: "GgufFile | None" = None
    commit: str = ""


def find_checkpoint(what: str | os.PathLike[str], *, revision: str | None = None, code: bool = False) -> Checkpoint:
    """The checkpoint that `what` means: a bundled model's name, a folder, or a hub id, in this order.

    A path object, and a text that can only be a path ("./x", "/x", "~/x"), is never looked up on the hub. `code`: also
    fetch the Python files of a hub model. Raises ModelError where there is none, or none that can be loaded safely.
    """
    name = os.fspath(what)
    folder, is_bundled = Path(os.path.expanduser(name)), isinstance(what, str) and name in BUNDLED
    is_here = bool(name.strip()) and os.path.exists(folder)  # os.path: a text that can be no path is merely not there
    if revision is not None and (is_bundled or is_here):
        raise ModelError(
            f"{revision=} is for models on the hub, and {name!r} is {'bundled' if is_bundled else 'here'}."
        )
    if is_bundled:
        because = f"bundled: the published weights of {BUNDLED[name].source}, by their digest"
        return _opened(find_bundled(name), name, because, BUNDLED[name].sha256)
    if is_here and folder.is_dir():
        return _opened(folder, folder.resolve().name, f"from the folder {folder}")
    if is_here:
        if folder.suffix.lower() == GGUF or _begins_as_gguf(folder):
            file = _gguf_file(folder)
            because = f"from the file {folder}, sha256 {file.sha256[:12]}..."
            return Checkpoint(folder.parent, folder.stem, because, {}, (folder.name,), file)
        if folder.suffix in _PICKLES:
            raise _pickle(str(folder), folder.parent, [folder.name])
        raise ModelError(f"{name!r} is a file. Give the folder that it is in, with the model's config.json.")
    if not isinstance(what, str) or not is_hub_id(name):
        kind = "file" if folder.suffix.lower() == GGUF else "folder"
        raise ModelError(
            f"no model {name!r}: no such {kind}, and not a name that the hub could know ('gpt2', 'owner/name')."
            f"{_suggest(name)} Bundled: {', '.join(BUNDLED)}."
        )
    return _from_hub(name, revision, code)


def first_line(error: Exception) -> str:
    """The first line of somebody else's message, as a sentence; its kind where it has no message.

    One that ends in a colon has only said where ("Validation error for field 'hidden_size':"): the next one says what.
    """
    text = line_of(error, 300) or type(error).__name__
    if text.endswith(":"):
        text = " ".join(map(str.strip, str(error).strip().splitlines()[:2]))[:300]
    return text if text.endswith((".", "!", "?")) else f"{text}."


def brief(error: Exception) -> str:
    """Its kind and its last line, where a family's own checks say what they want."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[-1].strip()[:200]}"


def _opened(folder: Path, name: str, because: str, sha256: str | None = None) -> Checkpoint:
    """The checkpoint in `folder`. `sha256`: the digest of its weights, where it was taken already.

    Raises ModelError unless there is a GGUF file, or a config.json and weights in safetensors.
    """
    try:
        # A folder inside ends in "/", so that it is no file of a model, and a message shows it as what it is.
        files = sorted(path.name + "/" * (not path.is_file()) for path in folder.iterdir())
    except OSError as error:
        raise FileAccessError(f"cannot read {folder}: {error}. Check its permissions.") from error
    if (packed := _packed(folder, files)) is not None:
        file = _gguf_file(packed)
        because += f": {packed.name}, sha256 {(sha256 or file.sha256)[:12]}..."
        return Checkpoint(folder, name, because, {}, (packed.name,), file)
    _require_model_files(str(folder), files)
    config = parsed(folder / "config.json")
    classes = config.get("architectures") or []
    if not isinstance(classes, list):
        raise ModelError(f"{folder / 'config.json'} says architectures={classes!r}, which should be a list of names.")
    named = config.get("transformers_weights")  # a checkpoint may name its own file
    weights = next((file for file in ([named] if named else _WEIGHTS) if file in files), None)
    if weights is None:
        if pickles := _pickles_in(files):
            raise _pickle(str(folder), folder, pickles, config)
        expected = named or " or ".join(_WEIGHTS[:2])
        raise ModelError(f"{folder} has no weights: {expected} is missing. {_holds(files)}")
    shards = [weights]
    if weights.endswith(".index.json"):
        try:
            index = json.loads((folder / weights).read_text(encoding="utf-8"))
            shards = sorted({str(shard) for shard in index["weight_map"].values()})
        except (OSError, ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
            raise ModelError(f"{folder / weights} is not an index of weights ({error!r}): it is damaged.") from error
    # An index is anybody's JSON: a path in it could lead out of the folder whose files were looked at.
    if outside := [shard for shard in shards if Path(shard).name != shard]:
        raise ModelError(f"{folder / weights} names a file outside of its folder, {outside[0]!r}: it is damaged.")
    if missing := [shard for shard in shards if not (folder / shard).is_file()]:
        raise ModelError(
            f"{folder} is incomplete: {len(missing)} of {len(shards)} weight files missing: {few(missing)}."
        )
    if unsafe := [shard for shard in shards if not shard.endswith(".safetensors")]:
        raise _pickle(str(folder), folder, unsafe, config)
    return Checkpoint(folder, name, because, config, tuple(shards))


def _begins_as_gguf(path: Path) -> bool:
    """Whether a file is one by its first bytes: Ollama calls its files by their digests, as in sha256-9f4b..."""
    try:
        return read_bytes(path, 4) == b"GGUF"
    except OSError:  # a pipe, or what may not be read
        return False


def _gguf_file(path: Path) -> "GgufFile":
    from manyheads.models.loading.gguf.file import GgufFile  # deferred: it needs NumPy, and sizing a preset does not

    return GgufFile(path)


def _packed(folder: Path, files: Collection[str]) -> Path | None:
    """The GGUF file that is the model of a folder; None: a config.json says what the model is, or there is none.

    Raises ModelError where there are several.
    """
    packed = [file for file in files if file.lower().endswith(GGUF)]
    if not packed or "config.json" in files:
        return None
    if len(packed) > 1 and not all(_PART.search(file) for file in packed):  # parts have a refusal of their own
        raise ModelError(f"{folder} holds {len(packed)} GGUF files ({few(packed)}): name one of them.")
    return folder / packed[0]


def find_gguf(path: Path) -> "GgufFile | None":
    """The GGUF file at `path`: that file, or the one in that folder where it has no config.json; None: neither.

    Raises ModelError for a damaged file and for a folder of several, FileAccessError where it cannot be read.
    """
    if path.is_dir():
        try:
            files = sorted(file.name for file in path.iterdir() if file.is_file())
        except OSError as error:
            raise FileAccessError(f"cannot read {path}: {error}. Check its permissions.") from error
        packed = _packed(path, files)
        return None if packed is None else _gguf_file(packed)
    is_gguf = path.is_file() and (path.suffix.lower() == GGUF or _begins_as_gguf(path))
    return _gguf_file(path) if is_gguf else None


def _require_model_files(where: str, files: list[str]) -> None:
    """Raises ModelError if `files` are not a transformers model's."""
    if "adapter_config.json" in files:
        raise ModelError(
            f"{where} holds an adapter, not a whole model. Merge it into its base model first "
            f"(peft: merge_and_unload(), then save_pretrained) and load the result."
        )
    if "config.json" not in files:
        raise ModelError(f"{where} has no config.json, so its kind of model is unknown. {_holds(files)}")


def _pickle(where: str, folder: Path | None, files: list[str], config: dict[str, Any] | None = None) -> ModelError:
    """The refusal of a checkpoint whose weights are pickled, with the line that makes safetensors of them.

    The line for "pytorch_model.bin" goes through the model's own class, which knows tied and sharded weights; a loose
    state dict is copied tensor by tensor. Both run nothing but torch's restricted unpickler.
    """
    source, target = (str(folder), str(folder)) if folder else (where, "./" + where.split("/")[-1])
    if config is not None and (folder is None or any(file.startswith("pytorch_model") for file in files)):
        named = [str(name) for name in config.get("architectures") or []]
        safe = (name for name in named if name.isidentifier())  # it becomes code: nothing else may pass
        cls = next(safe, "AutoModel")
        code = f"from transformers import {cls} as M; M.from_pretrained({source!r}).save_pretrained({target!r})"
    else:
        path = str(Path(folder or ".") / files[0])
        code = (
            f"import torch, safetensors.torch as s; w = torch.load({path!r}, map_location='cpu', weights_only=True); "
            f"s.save_file({{k: t.clone().contiguous() for k, t in w.items()}}, {str(Path(target) / _WEIGHTS[0])!r})"
        )
    return ModelError(
        f"the weights of {where} are pickled ({few(files)}), and to open a pickle is to run the code in it. If you "
        f"trust it, make safetensors of it, then load {target!r}:\n  python -c {shlex.quote(code)}"
    )


def _pickles_in(files: list[str]) -> list[str]:
    return [file for file in files if file.endswith(_PICKLES) and not file.startswith(_TRAINING)]


def _holds(files: list[str]) -> str:
    return f"It holds {few(files)}." if files else "It is empty."


def is_hub_id(name: str) -> bool:
    """Whether the hub could know a model by that name."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True


def _from_hub(name: str, revision: str | None, code: bool) -> Checkpoint:
    """The hub's model `name`: from the local cache if it is there in full, else fetched (its bars go to stderr)."""
    from huggingface_hub import HfApi, snapshot_download

    needed = ["config.json", "*.py"] if code else ["config.json"]
    try:  # the cache, which may hold the model in part; asks no network
        cached = Path(snapshot_download(name, revision=revision, local_files_only=True, allow_patterns=needed))
    except OSError:  # the hub's LocalEntryNotFoundError and IncompleteSnapshotError are OSErrors
        cached = None
    if cached is not None:
        origin = f"from the local hub cache, commit {cached.name[:7]}"
        # Whole: config, every weight file, and something of a tokenizer. Then there is nothing to ask the hub for.
        with suppress(ModelError):
            checkpoint = _opened(cached, name, origin)
            if any(path.name.startswith(_OF_TOKENIZERS) for path in cached.iterdir()):
                return replace(checkpoint, commit=cached.name)
    try:
        info = HfApi().model_info(name, revision=revision, timeout=_HUB_TIMEOUT_SECONDS)
        files = sorted(entry.rfilename for entry in info.siblings or [] if "/" not in entry.rfilename)
        _require_model_files(f"the hub's {name!r}", files)
        if not any(file.endswith(".safetensors") for file in files):
            if pickles := _pickles_in(files):
                raise _pickle(name, None, pickles, info.config or {})
            raise ModelError(f"the hub's {name!r} has no weights in safetensors. {_holds(files)}")
        patterns = [*_SMALL, *_LARGE, *(["*.py"] if code else [])]
        # By the commit that was just looked at: a branch may move between the look and the download.
        commit = snapshot_download(name, revision=info.sha, allow_patterns=patterns, ignore_patterns=["*/*"])
    except ModelError:
        raise
    except Exception as error:  # an HTTP library's own kinds, which change with its version: all mean "not fetched"
        if cached is not None:  # whole but for a tokenizer; or the error says what it lacks
            return replace(_opened(cached, name, f"{origin}; not fetched: offline"), commit=cached.name)
        raise _not_fetched(error, name, revision) from error
    folder = Path(commit)
    return replace(_opened(folder, name, f"from the hub, commit {folder.name[:7]}"), commit=folder.name)


def fetched_config(name: str) -> Path:
    """The config.json of the hub's model `name`: from the local cache, else fetched.

    Raises ModelError where it is in neither; offline it says what to download.
    """
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError

    with suppress(OSError):  # asks no network
        return Path(hf_hub_download(name, "config.json", local_files_only=True))
    try:
        commit = HfApi().model_info(name, timeout=_HUB_TIMEOUT_SECONDS).sha
        return Path(hf_hub_download(name, "config.json", revision=commit))
    except Exception as error:  # as in `_from_hub`
        refused, message = isinstance(error, HfHubHTTPError), str(_not_fetched(error, name, None))
        url = f"https://huggingface.co/{name}/resolve/main/config.json"
        raise ModelError(message if refused else f"{message} Download {url} and give that file.") from error


def _not_fetched(error: Exception, name: str, revision: str | None) -> ModelError:
    """The hub's error about `name`, in words that say what to do."""
    from huggingface_hub.constants import is_offline_mode
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    nowhere = f"no model {name!r}: not bundled ({', '.join(BUNDLED)}), not a folder here"
    if isinstance(error, GatedRepoError):  # a kind of RepositoryNotFoundError, so it is asked for first
        return ModelError(f"{name!r} is open to those who accept its licence: huggingface.co/{name}; `hf auth login`.")
    if isinstance(error, RevisionNotFoundError):
        return ModelError(f"the hub's {name!r} has no {revision=}. Leave it out for the newest.")
    if isinstance(error, RepositoryNotFoundError):
        private = "If it is private, run `hf auth login`."
        return ModelError(f"{nowhere}, and the hub shows you none of that name.{_suggest(name)} {private}")
    if is_offline_mode():
        why = "offline mode is on (HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set)"
    else:
        why = f"offline? ({first_line(error).rstrip('.')})"
    return ModelError(f"{nowhere}, not in the local hub cache, and the hub cannot be reached: {why}.{_suggest(name)}")


def _suggest(name: str) -> str:
    """' Did you mean ...?' with close names that are on this machine, or nothing."""
    from huggingface_hub.constants import HF_HUB_CACHE

    cached = [path.name.removeprefix("models--").replace("--", "/") for path in Path(HF_HUB_CACHE).glob("models--*")]
    close = nearest(name, [*BUNDLED, *cached])
    return f" Did you mean {' or '.join(map(repr, close))}?" if close else ""


_LOCK = threading.RLock()  # one that the thread may take again: `load` is quiet, and so is what it calls


@contextmanager
def quietly() -> Iterator[None]:
    """Inside, transformers and the hub's client log nothing below ERROR and transformers draws no bars.

    Its bars, advice and load reports are written for people who called it, and ours called us; what matters in them we
    say ourselves. The hub's download bars stay: whatever takes minutes should be seen to move.
    """
    # The switches are of the whole process: turned under a lock, and always turned back. Python's garbage collector
    # rests meanwhile: importing transformers' model code makes a million objects, and every pass over them finds
    # nothing, for a fifth of the time (docs/lab.md).
    with _LOCK:
        collects = gc.isenabled()
        gc.disable()
        try:
            # Imported before the levels are read: both libraries set them when they are imported.
            empty, set_hook = private_names.EmptyTqdm, private_names.set_tqdm_hook
            loggers = [logging.getLogger(name) for name in ("transformers", "huggingface_hub")]
            levels = [logger.level for logger in loggers]
            hook = set_hook(lambda factory, args, kwargs: empty(*args, **kwargs))
            try:
                for logger in loggers:
                    logger.setLevel(logging.ERROR)
                yield
            finally:
                set_hook(hook)
                for logger, level in zip(loggers, levels, strict=True):
                    logger.setLevel(level)
        finally:
            if collects:
                gc.enable()
