"""The compact form: a folder with a pruned model's small tensors, where its family's config has no words for them.

    config.json           the architecture as it was before heads were removed
    pruned.safetensors    the weights that are left, under transformers' names
    manyheads.json        which heads are left, of which sites; what was removed, from what, and why; a checksum of the
                          weights' file

`write_compact` and `build_compact` are inverses, to the bit. The architecture is built, cut to the heads that are left,
and given its weights; each of them must be there, in its shape, and no other. The weights are not called
model.safetensors: a program that loads the folder without this library must get an error, and not, for tensors that do
not fit, random numbers. All of `manyheads.json` is read as plain data and checked. (What was removed, from what, and
why are words for people: nothing reads them.)
Cost: the weights are read once more for their checksum (sha256), when they are written and when they are loaded: 1 to
2 s a GB. Folders of before there was one load without.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from manyheads import private_names
from manyheads.errors import ManyHeadsError, ModelError
from manyheads.models.weights.cut import KeptHeads, cut_model, kept_in
from manyheads.spec import Site

MARK, WEIGHTS = "manyheads.json", "pruned.safetensors"
FORMAT, VERSION = "manyheads pruned model", 1
COMPACT, STOCK = "compact", "stock"
TURNS = 5  # of reading a folder that is saved anew again and again
ALIASES, WEIGHTS_SUM = "aliases", "weights_sha256"


def is_compact(folder: Path) -> bool:
    """Whether `folder` holds weights in the compact form."""
    return (folder / MARK).is_file() and (folder / WEIGHTS).is_file()


def write_compact(model: Any, folder: Path, facts: Mapping[str, Any]) -> None:
    """Write a cut model's config, weights and mark into `folder`. `facts`: more fields of the mark.

    Tensors that are one (tied embeddings) are written once. Errors: OSError, SafetensorError, as the disk has them.
    """
    from safetensors.torch import save_file

    state: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}  # other names of tensors that have several
    names: dict[tuple[int, torch.Size, tuple[int, ...]], str] = {}
    for name, value in model.state_dict().items():
        key = value.data_ptr(), value.shape, value.stride()
        if value.numel() and key in names:  # empty tensors share an address without being one tensor
            aliases[name] = names[key]
        else:
            names[key] = name
            state[name] = value.detach().cpu().contiguous()
    config = model.config
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    if getattr(model, "generation_config", None) is not None:
        model.generation_config.save_pretrained(folder)
    save_file(state, folder / WEIGHTS, {"format": "pt"})
    kept_heads = [
        {"site": vars(site.site), "heads": list(site.heads), "kv_heads": list(site.kv_heads)} for site in kept_in(model)
    ]
    checksum = _sum_of(folder / WEIGHTS)
    write_mark(folder, {"form": COMPACT, **facts, WEIGHTS_SUM: checksum, ALIASES: aliases, "kept": kept_heads})


def write_mark(folder: Path, facts: Mapping[str, Any]) -> None:
    """Write `manyheads.json`: format, versions and `facts`."""
    from transformers import __version__

    mark = {"format": FORMAT, "version": VERSION, "transformers": __version__, **facts}
    (folder / MARK).write_text(json.dumps(mark, indent=1) + "\n", encoding="utf-8")


def read_mark(folder: Path) -> dict[str, Any]:
    """The content of `manyheads.json`. Raises ModelError where it is damaged, or where a newer version wrote it."""
    try:
        mark = json.loads((folder / MARK).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(
            f"{folder / MARK} cannot be read ({error}): the file is damaged. Save the model again."
        ) from error
    if not isinstance(mark, dict) or mark.get("format") != FORMAT:
        raise ModelError(f"{folder / MARK} is not a pruned model's: {FORMAT!r} is missing. The file is damaged.")
    version = mark.get("version")
    if type(version) is not int or version < 1:  # True is an int to Python, and no version
        stored = repr(version)[:40] if isinstance(version, int | float | str | None) else f"a {type(version).__name__}"
        raise ModelError(
            f"{folder / MARK} says version {stored}, and should say {VERSION}: the file is damaged. Save the model "
            f"again."
        )
    if version > VERSION:
        raise ModelError(f"{folder / MARK} is of version {version}, and this manyheads reads up to {VERSION}. Upgrade.")
    return mark


def build_compact(
    cls: Any, folder: Path, device: torch.device, dtype: torch.dtype | None, attention: str | None
) -> tuple[nn.Module, list[str]]:
    """The pruned model in `folder`, on a device, in eval mode, and a remark.

    Errors: ModelError for files that do not fit.
    """
    # Where another process saves a model there meanwhile, files of both may be read, which do not fit: then once more,
    # but only if the mark has changed, since a damaged folder stays what it is.
    for turn in range(TURNS):
        mark = read_mark(folder)
        try:
            return _build(mark, cls, folder, device, dtype, attention)
        except ModelError:
            if turn == TURNS - 1 or read_mark(folder) == mark:
                raise
    raise AssertionError("the last turn returns or raises")


def _build(
    mark: Mapping[str, Any],
    cls: Any,
    folder: Path,
    device: torch.device,
    dtype: torch.dtype | None,
    attention: str | None,
) -> tuple[nn.Module, list[str]]:
    if mark.get("form") != COMPACT:
        raise ModelError(
            f"{folder / MARK} says that the form is {mark.get('form')!r}, and {WEIGHTS} beside it is of the form "
            f"{COMPACT!r}: the files do not belong together. Save the model again."
        )
    sites = []
    try:
        for entry in mark["kept"]:
            site = Site.from_dict(entry["site"])
            for heads, count in ((entry["heads"], site.num_heads), (entry["kv_heads"], site.num_kv_heads)):
                numbers = all(type(head) is int and 0 <= head < count for head in heads)
                if not numbers or len(set(heads)) < len(heads):
                    raise ValueError(f"{heads} should be different heads of 0 to {count - 1}")
            sites.append(KeptHeads(site, tuple(entry["heads"]), tuple(entry["kv_heads"])))
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(
            f"{folder / MARK} does not say which heads are left ({error}): the file is damaged."
        ) from error
    model = _architecture(cls, folder, dtype, attention)
    try:
        cut_model(model, sites)
    except (ManyHeadsError, AttributeError) as error:
        raise ModelError(f"{folder} does not fit the {cls.__name__} of its config.json: {error}") from error
    state = _read_state(folder, mark, device)
    # transformers would fill in, at random, what is missing or of another shape: exactly these weights are taken.
    expected, stored = ({name: tuple(x.shape) for name, x in part.items()} for part in (model.state_dict(), state))
    if wrong := sorted(name for name in expected.keys() | stored.keys() if expected.get(name) != stored.get(name)):
        name = wrong[0]
        raise ModelError(
            f"{folder}: {len(wrong)} weights are not those that its config.json and {MARK} mean: {name} is "
            f"{stored.get(name, 'missing')}, and should be {expected.get(name, 'nowhere')}. The files do not belong "
            f"together, or another version of transformers wrote them."
        )
    if dtype is not None:
        for name, value in state.items():  # one by one, so that no more than one weight is there in both dtypes
            state[name] = value.to(dtype) if value.is_floating_point() else value
    model.load_state_dict(state, strict=True, assign=True)
    model = model.to(device)  # what the architecture brings besides: tables that are computed
    model.tie_weights()
    removed = sum(len(site.removed) for site in sites)
    return model.eval(), [f"{removed} head{'s' * (removed != 1)} removed, in manyheads' compact form"]


def _architecture(cls: Any, folder: Path, dtype: torch.dtype | None, attention: str | None) -> Any:
    """The model of the folder's config.json, whole, its weights not set."""
    from transformers import GenerationConfig

    if not private_names.can_be_built(cls):
        raise ModelError(f"{folder / 'config.json'} names no architecture that transformers has; it is damaged.")
    try:
        config = cls.config_class.from_pretrained(folder, local_files_only=True)
        options = {"attn_implementation": attention} if attention else {}
        # Building draws random numbers even where none is used: the caller's own sequence stays as it was.
        with torch.random.fork_rng(devices=[]), private_names.no_init_weights():
            model = private_names.from_config(cls, config, dtype=dtype or config.dtype or torch.float32, **options)
        if (folder / "generation_config.json").is_file():
            model.generation_config = GenerationConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # whatever a foreign class stumbles over is about this config
        raise ModelError(f"transformers cannot build {cls.__name__} from {folder / 'config.json'}: {error}") from error
    return model


def _sum_of(path: Path) -> str:
    """The sha256 of a file, read piece by piece."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_state(folder: Path, mark: Mapping[str, Any], device: torch.device) -> dict[str, Tensor]:
    """The tensors, to the bit those that were saved, where the mark has their checksum; each alias is one more name."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        state = load_file(folder / WEIGHTS, device=str(device))
        # Folders that were written before there was a checksum load without one.
        intact = WEIGHTS_SUM not in mark or mark[WEIGHTS_SUM] == _sum_of(folder / WEIGHTS)
    except torch.OutOfMemoryError:
        raise
    except (SafetensorError, OSError, KeyError, RuntimeError) as error:  # KeyError: a type that torch lacks
        raise ModelError(
            f"the weights in {folder / WEIGHTS} are damaged ({error}). Copy or fetch them again."
        ) from error
    if not intact:
        raise ModelError(
            f"{folder / WEIGHTS} is damaged, or belongs to another model: its bytes are not those that {MARK} beside "
            f"it names (their checksum differs). Copy or fetch both again."
        )
    aliases = mark.get(ALIASES, {})
    try:
        return state | {name: state[source] for name, source in aliases.items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise ModelError(
            f"{folder / MARK} names, as {ALIASES!r}, tensors that {WEIGHTS} does not hold ({error}): it is damaged, or "
            f"belongs to another model. Save the model again."
        ) from error
