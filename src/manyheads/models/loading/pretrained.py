"""From a checkpoint to a model: its class, its weights, its tokenizer, with nothing made up on the way.

`class_for` chooses the class, `build` makes the model and checks every weight, `reader_beside` and `processor_beside`
read the tokenizer, and what makes inputs of pictures or sounds. What is worth a remark is returned as text; what would
make another model of it raises. For where something is missing, transformers fills in (random numbers for a weight, an
empty vocabulary for a tokenizer, another implementation of attention than the one asked for) and logs it at best.

`require_plausible` comes before memory is taken: transformers makes room for whatever a config claims, and only then
finds that the weights do not fit. A damaged number, or a config that was made for it, would end the machine.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from manyheads import private_names
from manyheads.base import few
from manyheads.errors import ManyHeadsError, ModelError
from manyheads.machine import free_bytes
from manyheads.models.describe import PICTURES, TEXT, sense_of, takes
from manyheads.models.loading.checkpoints import Checkpoint, first_line
from manyheads.models.loading.gguf.model import build_unpacked, class_of
from manyheads.models.loading.gguf.tokenizer import tokenizer_in_words, tokenizer_of
from manyheads.models.loading.protocols import OPTIONS, Processor, Tokenizer
from manyheads.models.weights.compact_form import build_compact, is_compact
from manyheads.models.weights.projections import image_token_of
from manyheads.sizing.architecture import FEW_LAYERS, require_few_layers
from manyheads.units import gb

__all__ = [
    "build",
    "class_for",
    "has_tokenizer_files",
    "processor_beside",
    "reader_beside",
    "tokenizer_beside",
    "require_plausible",
]


SPREAD = "auto"  # in place of a device: all that are here
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
TOKENIZER_FILES = re.compile(r"tokenizer|vocab|merges|.*(spm|piece|bpe).*\.model", re.IGNORECASE)
_TRUST = "If you trust it, read that code, then pass trust_remote_code=True to run it."
MOST_FOR_A_BYTE = 4  # numbers: what packs them tightest has four in a byte
ROOM = 2**24  # numbers more than that, for what is not stored: tables of positions, masks, tied and missing weights


def class_for(checkpoint: Checkpoint, trust: bool) -> tuple[type, str]:
    """The class to build, and why that one: the first of the config's architectures that transformers has.

    Raises ModelError if the checkpoint wants code run that comes with it, or from the hub, and nobody said it may.
    """
    import transformers

    if checkpoint.gguf is not None:
        return class_of(checkpoint.gguf), f"from the file's architecture {checkpoint.gguf.architecture!r}"
    config = checkpoint.config
    named = [name for name in config.get("architectures") or [] if isinstance(name, str)]
    kernel = config.get("attn_implementation")
    if not trust and isinstance(kernel, str) and "/" in kernel:
        raise ModelError(f"{checkpoint.name}'s config.json asks for attention code from the hub, {kernel!r}. {_TRUST}")
    for name in named:
        cls = getattr(transformers, name, None)
        if isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel):
            return cls, "which its config.json names"
    mapped = config.get("auto_map") or {}
    if mapped and not trust:
        raise ModelError(
            f"{checkpoint.name} is a {few(named) or 'class of its own'}, which transformers does not have: its code "
            f"comes with it. {_TRUST}"
        )
    if mapped:
        autos = [
            key for key, where in mapped.items() if key.startswith("AutoModel") and str(where).split(".")[-1] in named
        ]
        return getattr(transformers, (autos or ["AutoModel"])[0]), "from its own code, as trust_remote_code=True allows"
    fault = f"names {few(named)}, which transformers does not have" if named else "names no architecture"
    return transformers.AutoModel, f"the bare model without a head, because its config.json {fault}"


def build(
    cls: Any,
    checkpoint: Checkpoint,
    device: torch.device,
    dtype: torch.dtype | None,
    attention: str | None,
    trust: bool,
    is_spread: bool = False,
) -> tuple[Any, list[str]]:
    """The model with its weights on a device, in eval mode, and remarks about weights left over or not needed.

    Weights go from their files to the device one by one, so that each exists once. `is_spread`: to all accelerators
    that are here instead, layer by layer.

    Errors: ModelError where the weights are damaged, missing or misshapen, or the model is another than was asked for.
    """
    from safetensors import SafetensorError

    options: dict[str, Any] = {"attn_implementation": attention} if attention else {}
    # Of transformers' two ways to a device, this one passes no weight through this machine's memory; it needs
    # accelerate. Without it the model is made here, and each weight is dropped here as it arrives there.
    if is_spread:
        if find_spec("accelerate") is None or checkpoint.gguf is not None or is_compact(checkpoint.folder):
            raise ModelError(
                f"device={SPREAD!r} spreads a folder of safetensors over several devices by the library accelerate: "
                f"install it (pip install accelerate), and name a checkpoint that is neither GGUF nor compact."
            )
        options["device_map"] = SPREAD
    elif device.type != "cpu" and find_spec("accelerate") is not None:
        options["device_map"] = {"": device}
    try:
        if checkpoint.gguf is not None:
            remarks = [] if dtype is None else [checkpoint.gguf.unpacked_in_words]
            return build_unpacked(checkpoint.gguf, device, dtype, attention), remarks
        require_plausible(cls, checkpoint)
        if is_compact(checkpoint.folder):
            return build_compact(cls, checkpoint.folder, device, dtype, attention)
        model, info = cls.from_pretrained(
            checkpoint.folder,
            dtype=dtype or "auto",
            use_safetensors=True,
            trust_remote_code=trust,
            local_files_only=not trust,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # so that they come back to us, named, and are refused below
            **options,
        )
        model = model if is_spread else model.to(device)
    except torch.OutOfMemoryError as error:
        num_bytes = sum((checkpoint.folder / shard).stat().st_size for shard in checkpoint.shards)
        free = free_bytes(device)
        free_in_words = "" if free is None else f", where {gb(free)} are free"
        raise ModelError(
            f"{checkpoint.name} does not fit on {device}{free_in_words}: its weights are {gb(num_bytes)} of files. "
            f"Load it on another device (device='cpu'), or in a smaller dtype."
        ) from error
    except SafetensorError as error:
        raise ModelError(
            f"the weights in {checkpoint.folder} are damaged ({error}). Copy or fetch them again."
        ) from error
    except ManyHeadsError:
        raise
    except Exception as error:  # whatever a foreign loader stumbles over is about this checkpoint
        raise ModelError(
            f"transformers cannot load {checkpoint.name} as {cls.__name__}: {first_line(error)}"
        ) from error
    taken = private_names.attention_of(model)
    if attention and taken != attention:
        raise ModelError(
            f"{type(model).__name__} took {taken!r} for attn_implementation={attention!r}. Ask for that one."
        )
    return model.eval(), _require_complete(model, info, checkpoint.name)


def _require_complete(model: nn.Module, info: dict[str, Any], name: str) -> list[str]:
    """What to say of weights left over or not needed. Raises ModelError if any that count are missing or misshapen."""
    cls, spare = type(model).__name__, []
    if wrong := sorted(info["mismatched_keys"]):
        shapes = few([f"{key} is {list(stored)}, not {list(meant)}" for key, stored, meant in wrong])
        raise ModelError(f"{name}: {len(wrong)} weights do not have the shapes that its config.json means: {shapes}.")
    missing = sorted(info["missing_keys"])
    # A pooler sits on top of everything and feeds nothing but its own output, in a model without a head above it.
    poolers = [key for key in missing if model.base_model is model and key.startswith("pooler.")]
    if lost := [key for key in missing if key not in poolers]:
        raise ModelError(
            f"{name} lacks {len(lost)} of the weights of {cls}, which would be random numbers: {few(lost)}. "
            f"Use a complete checkpoint, or have its config.json name the architecture that was saved."
        )
    if poolers:
        with torch.no_grad():
            for key in poolers:  # not left at random: the same checkpoint should be the same model every time
                model.get_parameter(key).zero_()
        spare.append("its pooler, which no head depends on, is not stored and set to zero")
    if unused := sorted(info["unexpected_keys"]):
        spare.append(f"{len(unused)} stored weights have no place in {cls} and are left out: {few(unused)}")
    return spare


def has_tokenizer_files(folder: Path) -> bool:
    """Whether anything that a tokenizer is read from lies in a folder, by its name."""
    return any(TOKENIZER_FILES.match(path.name) for path in folder.iterdir())


def tokenizer_beside(checkpoint: Checkpoint, trust: bool) -> Tokenizer:
    """The tokenizer in the checkpoint's folder, padding and truncation off. Raises ModelError if there is none."""
    from transformers import AutoTokenizer

    lacking = f"{checkpoint.folder} has no tokenizer files (tokenizer.json, or a vocabulary): save one there{OPTIONS}."
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            checkpoint.folder, trust_remote_code=trust, local_files_only=not trust
        )
        words = len(tokenizer) - len(set(tokenizer.all_special_ids))
    except Exception as error:
        if not has_tokenizer_files(checkpoint.folder):
            raise ModelError(lacking) from error
        raise ModelError(
            f"{checkpoint.folder} has no usable tokenizer: {first_line(error)} Save one there{OPTIONS}."
        ) from error
    if words <= 0:  # transformers makes an empty one where there are no files
        raise ModelError(lacking)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:  # minilm's tokenizer.json says: pad and cut to 128
        backend.no_padding()
        backend.no_truncation()
    return tokenizer


def reader_beside(model: nn.Module, checkpoint: Checkpoint, trust: bool) -> tuple[Tokenizer | None, list[str]]:
    """The tokenizer of a model, and a remark where there is none. Raises ModelError where a model of text has none."""
    if checkpoint.gguf is not None:
        return tokenizer_of(checkpoint.gguf), [tokenizer_in_words(checkpoint.gguf)]
    try:
        return tokenizer_beside(checkpoint, trust), []
    except ModelError:
        if sense_of(model) == TEXT:
            raise
        return None, [f"no tokenizer lies beside it, and {sense_of(model)} need none"]


def processor_beside(model: nn.Module, checkpoint: Checkpoint, trust: bool) -> tuple[Processor | None, list[str]]:
    """What makes pictures or sounds into inputs of the model, by PIL and NumPy; None, and why, where there is none.

    Nothing is raised: a model is of use without it to a caller who has its inputs already.
    """
    modality = takes(model)
    if modality is None or not any((checkpoint.folder / name).is_file() for name in PROCESSOR_FILES):
        lacking = [f"no {PROCESSOR_FILES[0]} lies beside it"] if sense_of(model) != TEXT else []
        return None, lacking
    from transformers import AutoFeatureExtractor

    options: dict[str, Any] = {"trust_remote_code": trust, "local_files_only": not trust}
    try:
        if modality == PICTURES:
            processor = private_names.AutoImageProcessor.from_pretrained(checkpoint.folder, backend="pil", **options)
        else:
            processor = AutoFeatureExtractor.from_pretrained(checkpoint.folder, **options)
    except Exception as error:  # whatever a foreign loader stumbles over is about this checkpoint
        return None, [f"its processor of {modality} cannot be used: {first_line(error).rstrip('.')}"]
    remarks = [f"{modality} by {type(processor).__name__}, which lies beside it"]
    if image_token_of(model.config) is None:
        return processor, remarks
    try:
        # What makes inputs of films needs torchvision, and nothing here reads films.
        without = "" if find_spec("torchvision") is not None else "video_processor"
        cls = private_names.processor_class(model.config, without)
        of_both = cls.from_pretrained(checkpoint.folder, backend="pil", **options)
    except Exception as error:  # as above
        return processor, [*remarks, f"no text with pictures, since their processor failed: {first_line(error)}"]
    return of_both, [*remarks, f"text with pictures by {type(of_both).__name__}"]


def require_plausible(cls: Any, checkpoint: Checkpoint) -> None:
    """Whether a config.json can mean the weights beside it: layers against tensors, numbers against bytes of the files.

    The model that it means is built without any numbers (on the meta device). Cost: 20 ms for `minilm`.
    Errors: ModelError for a config that means far more than is stored; SafetensorError, OSError as the files are.
    """
    from safetensors import safe_open

    files = [checkpoint.folder / shard for shard in checkpoint.shards]
    num_bytes, num_tensors = sum(file.stat().st_size for file in files), 0
    for file in files:
        with safe_open(file, "pt") as opened:
            num_tensors += len(opened.keys())
    require_few_layers(checkpoint.config, max(FEW_LAYERS, num_tensors))
    if not private_names.can_be_built(cls):
        return
    try:
        config = cls.config_class.from_pretrained(checkpoint.folder, local_files_only=True)
        with torch.random.fork_rng(devices=[]), torch.device("meta"), private_names.no_init_weights():
            model = private_names.from_config(cls, config)
    except Exception:  # the loader's own message names best what is wrong with such a config
        return
    meant = sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))
    if meant > MOST_FOR_A_BYTE * num_bytes + ROOM:
        raise ModelError(
            f"{checkpoint.folder} is damaged: its config.json means a {cls.__name__} of {meant:,} numbers, and its "
            f"weights are {num_bytes:,} bytes. Copy or fetch both again."
        )
