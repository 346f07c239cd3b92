"""From a config.json to a description, without torch: for the families in the tables here, else a refusal by name.

What: `read_config` takes a file or a folder, `describe_config` a mapping, as transformers writes it. The family is its
`model_type`; which class of the family is meant, bare or with its usual head, is what `architectures` says.
Why: whoever plans a model has its config.json and perhaps nothing else installed. A family that is not in the tables is
never sized by its likeness to another: `manyheads.models.dimensions` builds it with transformers, where that is there.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any, cast

from manyheads.base import no_access
from manyheads.errors import FileAccessError, ModelError, ShapeError
from manyheads.sizing.architecture.architecture import Architecture, Stored
from manyheads.sizing.architecture.decoder_table import DECODERS
from manyheads.sizing.architecture.decoders import decoder
from manyheads.sizing.architecture.encoders import ENCODERS, IMAGES, encoder, images
from manyheads.sizing.architecture.fields import Fields
from manyheads.sizing.architecture.seq2seq import SEQ2SEQ

FAMILIES = (*DECODERS, *ENCODERS, *IMAGES, *SEQ2SEQ)
"""Families that are sized without transformers."""

BARE = ("Model", "PreTrainedModel")
HEADS = (
    *("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration", "ForImageClassification", "HeadModel"),
    "MTModel",  # Marian's, before BARE: it ends in "Model", too
)
TIED_BY_DEFAULT = {**dict.fromkeys(ENCODERS, True), **dict.fromkeys(("bart", "mbart", "marian"), True)}
PACKED = "quantization_config"
STORED_BITS = {"float64": 64, "float32": 32, "float16": 16, "bfloat16": 16}
PACKING = ("quant_method", "bits", "group_size", "weight_block_size")
MATRICES = ("q", "k", "v", "qkv", "latent", "o", "feed-forward")  # what packings pack: all of a layer but its router
SAME = {"kimi_k2": "deepseek_v3"}
"""Names that a family's configs carry for their own code, where it is another family's to the last parameter."""
OLD_NAMES = {"n_embed": "hidden_size", "n_layers": "num_hidden_layers"}


class UnknownFamily(ModelError):
    """A config whose family, or class of it, is not in the tables here. Transformers may know it."""


def read_config(what: str | os.PathLike[str]) -> Architecture:
    """The architecture that a config.json, given by itself or by its folder, describes.

    Errors: UnknownFamily, a ModelError, for what is not in the tables; ModelError for a damaged config; ShapeError for
    sizes that do not fit; FileAccessError.
    """
    data, path = load_config(what)
    return replace(describe_config(data), name=name_of(path))


def load_config(what: str | os.PathLike[str]) -> tuple[dict[str, Any], Path]:
    """What is written in a config.json, given by itself or by its folder, and where it is."""
    path = Path(os.path.expanduser(os.fspath(what)))
    path = path / "config.json" if path.is_dir() else path
    if not path.exists() and path.name == "config.json":
        raise FileAccessError(f"the folder {path.parent} has no config.json, so its kind of model is unknown.")
    if not path.exists():
        raise no_access("read", path, FileNotFoundError(errno.ENOENT, ""))
    if not path.is_file():
        kind = f"{'a pipe' if path.is_fifo() else 'a device'}, not a file. Give a config.json, or a folder with one"
        raise no_access("read", path, OSError(errno.EINVAL, f"it is {kind}"))
    # The config of a pruned model is the whole one's: sizing it would be right about another model.
    if path.name == "config.json" and (path.parent / "pruned.safetensors").is_file():
        raise ModelError(
            f"{path.parent} holds a pruned model in manyheads' compact form, and its config.json describes the whole "
            f"one: give the spec of the model itself, as mh.size(mh.load({str(path.parent)!r}).spec)."
        )
    return parsed(path), path


def parsed(path: Path) -> dict[str, Any]:
    """What is written in a config.json. Errors: FileAccessError; ModelError where it is damaged."""
    try:
        # Some editors put a byte order mark before UTF-8, which plain "utf-8" would hand to the JSON parser.
        data: object = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise FileAccessError(f"cannot read {path}: {error.strerror or error}. Check its permissions.") from error
    except (ValueError, RecursionError) as error:  # bad JSON, lists in lists without end, or bad UTF-8
        raise ModelError(f"{path} is not JSON ({error}): the file is damaged.") from error
    if not isinstance(data, dict):
        raise ModelError(f"{path} is a {type(data).__name__}, not a mapping: the file is damaged.")
    return cast("dict[str, Any]", data)


def name_of(path: Path) -> str:
    """What to call the model of that config: its folder, unless the file is named for it."""
    return path.resolve().parent.name if path.name == "config.json" else path.stem


def describe_config(data: Mapping[str, Any]) -> Architecture:
    """The architecture of a config as a mapping. Errors: as `read_config`."""
    family = data.get("model_type")
    if not isinstance(family, str) or not family:
        raise ModelError(
            f"the config has no model_type ({family!r}), so its architecture is unknown. "
            f"Give a config.json as transformers saves it."
        )
    family = SAME.get(family, family)
    if family not in FAMILIES:  # a likeness is no evidence: it may differ in one bias, and sizes are exact
        raise UnknownFamily(
            f"{family!r} is not among the {len(FAMILIES)} architectures that are sized from a config alone, and none "
            f"is guessed from its likeness to another."
        )
    headless, declared = _class_of(data, family)
    # Some files were written before transformers settled on one name for a field.
    plain = {**data, **{new: data[old] for old, new in OLD_NAMES.items() if old in data and new not in data}}
    defaults = {"tie_word_embeddings": TIED_BY_DEFAULT.get(family, False)}
    try:
        if family in DECODERS:
            row = DECODERS[family]
            fields = Fields(plain, family, row.names, {**defaults, **row.defaults})
            architecture = decoder(fields, row, headless=headless)
        elif family in ENCODERS:
            row = ENCODERS[family]
            fields = Fields(plain, family, row.names, {**defaults, **row.defaults})
            architecture = encoder(fields, row, headless=headless)
        elif family in IMAGES:
            fields = Fields(plain, family, defaults={"qkv_bias": True, "mlp_ratio": 4})
            architecture = images(fields, IMAGES[family], headless=headless)
        else:
            defaults["share_encoder_decoder_embeddings"] = True
            architecture = SEQ2SEQ[family](Fields(plain, family, defaults=defaults), headless)
    except ShapeError as error:
        raise ShapeError(f"the config of {family!r} does not fit: {error}") from error
    packed = ("numbers are counted as asked, not as its quantization packs them",) if data.get(PACKED) else ()
    because = (f"{family}, {declared}", *architecture.because, *packed)
    return replace(architecture, because=because, stored=stored_of(data))


def stored_of(data: Mapping[str, Any]) -> Stored | None:
    """How the weights beside a config are stored, by its dtype and its quantization_config; None where those do not
    say, or in a packing that is not known here."""
    dtype = str(data.get("dtype") or data.get("torch_dtype") or "").removeprefix("torch.")
    rest, packing = STORED_BITS.get(dtype), data.get(PACKED)
    if not isinstance(packing, Mapping):
        return None if rest is None else Stored(dtype, rest)
    fields, rest = cast("Mapping[str, Any]", packing), rest or 16
    method, bits, group, block = (fields.get(name) for name in PACKING)
    if method == "mxfp4":  # 4 bits, and 8 for each 32: experts alone (OpenAI 2025, section 2.1)
        return Stored("MXFP4 for the experts, bf16 for the rest", rest, 4 + 8 / 32, ("feed-forward",))
    sides = cast("list[Any]", block) if isinstance(block, list | tuple) else [0]
    if method == "fp8" and all(type(side) is int and side > 0 for side in sides):
        scale = 32 / prod(sides)
        return Stored("FP8, with embedding, head and router in bf16", rest, 8 + scale, MATRICES)
    if method in ("gptq", "awq") and bits in (2, 3, 4, 8) and type(group) is int:
        scale = (16 + bits) / group if group > 0 else 0.0  # a group's scale and its zero point
        return Stored(f"{method.upper()} of {bits} bits, with embedding and head in 16", rest, bits + scale, MATRICES)
    return None


def _class_of(data: Mapping[str, Any], family: str) -> tuple[bool, str]:
    """Whether the config means the model without a head, and how that is known."""
    classes: object = data.get("architectures") or []
    if not isinstance(classes, list | tuple) or not all(isinstance(name, str) for name in cast("list[Any]", classes)):
        raise ModelError(f"the config of {family!r} says architectures={classes!r}, which should be a list of names.")
    if not classes:
        bare = family in ENCODERS or family in IMAGES
        return bare, f"{'without' if bare else 'with'} its usual head, for its config names no class"
    first = cast("list[str]", classes)[0]
    if first.endswith(HEADS) and not (family in SEQ2SEQ and first.endswith("ForCausalLM")):  # those are half of it
        return False, f"as {first}"
    if first.endswith(BARE):
        return True, f"as {first}, without a head"
    raise UnknownFamily(
        f"{first!r} is not among the classes that are sized from a config alone: of {family!r} those are the bare "
        f"model and the one with its usual head."
    )
