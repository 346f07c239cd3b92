"""What vLLM-Hook (IBM/vLLM-Hook) saved of a run, as a recording: q and k of the layers that it was told to keep.

Its worker writes one folder for each tensor-parallel rank, `tp_rank_0`, `tp_rank_1`, ..., with `qk.safetensors` and
`qk.json`, if VLLM_HOOK_USE_SAFETENSORS=1 is set (else a pickle, which is refused): for every module q `[text, position,
heads * d]` (in the mode "last_token" `[text, heads * d]`) and k `[text, position, kv heads * d]`, as vLLM's attention
layer gets them, after rotation. Ranks hold neighbouring heads, and are put side by side. Read in its source at commit
631b0f9, `probe_hookqk_worker.py` and `run_utils.py`; not run here with vLLM itself.

Two things are not taken from its file. The width of a head is q's width over the number of heads, where the file has
hidden_size // heads, which is wrong for models whose heads are wider (Qwen3, Gemma); its scale 1 / sqrt(of that) is
then replaced by 1 / sqrt(d). And nothing there tells windows, softcaps or sinks: say them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from torch import Tensor

from manyheads.attention import Mask
from manyheads.base import no_access, read_bytes
from manyheads.errors import FileAccessError, RecordingError
from manyheads.recording import Recording, record_tensors
from manyheads.spec import MOST

RANK = re.compile(r"tp_rank_(\d+)")
LARGEST_JSON = 64 * 2**20


def read_vllm_hook(
    folder: str | Path,
    *,
    scale: float | None = None,
    window: int | Mapping[int, int] | None = None,
    softcap: float | None = None,
) -> Recording:
    """The recording of one run that vLLM-Hook saved: q and k of every kept layer, from which all weights follow.

    `folder`: the run's (with `tp_rank_0` in it), or a rank's own where there was one rank. `scale`: of scores; unless
    given, the file's, corrected where it rests on a wrong width (the module's page). `window`: how many keys a row
    sees, of every layer or by layer number; `softcap` likewise as in `attend`: the file knows of neither. Of a run in
    the mode "last_token" there is one row for each text, its last: weights can be read, statistics of whole maps not.
    Runs that went on generating are refused: their later calls were saved as further texts.
    Cost: the files, in memory. Errors: FileAccessError, RecordingError.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileAccessError(f"{folder} is not a folder: give the run's, which has tp_rank_0 in it.")
    ranks = {int(match[1]): path for path in folder.iterdir() if (match := RANK.fullmatch(path.name))}
    if RANK.fullmatch(folder.name) or any((folder / f"qk.{kind}").exists() for kind in ("safetensors", "pt")):
        ranks = {0: folder}
    if not ranks or sorted(ranks) != list(range(len(ranks))):
        present = ", ".join(sorted(path.name for path in folder.iterdir())[:5]) or "nothing"
        raise RecordingError(
            f"{folder} should have tp_rank_0, tp_rank_1, ... and has {present}: give the run's folder."
        )
    parts = [_rank(ranks[rank]) for rank in sorted(ranks)]
    config, modules = parts[0][0], parts[0][1]
    if any(part[1].keys() != modules.keys() for part in parts):
        raise RecordingError(f"{folder}: its ranks kept different modules, so that heads cannot be put side by side.")
    names = sorted(modules, key=lambda name: modules[name]["layer"])
    if not names:
        raise RecordingError(f"{folder} holds no layer: the worker kept none.")
    q_layers, k_layers = [], []
    for name in names:
        try:
            q, k = (torch.cat([part[1][name][tensor] for part in parts], -1) for tensor in ("q", "k"))
        except RuntimeError as error:
            raise RecordingError(f"{folder}: {name} has different shapes in different ranks ({error}).") from None
        q = q[:, None] if q.ndim == 2 else q
        num_heads = config["num_attention_heads"]
        if q.shape[-1] % num_heads or k.shape[-1] % (q.shape[-1] // num_heads):
            raise RecordingError(
                f"{folder}: {name} has q of width {q.shape[-1]} and k of {k.shape[-1]}, which {num_heads} heads do not "
                f"share: a rank's folder may be missing (these are {len(parts)})."
            )
        head_dim = q.shape[-1] // num_heads
        q_layers.append(q.unflatten(-1, (num_heads, head_dim)).transpose(1, 2).contiguous())
        k_layers.append(k.unflatten(-1, (-1, head_dim)).transpose(1, 2).contiguous())
    head_dim = q_layers[0].shape[-1]
    lengths = parts[0][2] or [k_layers[0].shape[2]] * len(k_layers[0])
    if len(lengths) != len(q_layers[0]):
        raise RecordingError(
            f"{folder}: {len(q_layers[0])} texts of q for {len(lengths)} lengths, as from a run that went on "
            f"generating: save a run of prompts alone (max_tokens=1)."
        )
    stored = config["attention_multiplier"]
    # What the worker writes where the config names no multiplier: of a width that it computed, not of the tensors'.
    width = config["hidden_size"] // num_heads
    guessed = width > 0 and math.isclose(stored, width**-0.5, rel_tol=1e-6)
    chosen = scale if scale is not None else head_dim**-0.5 if guessed else stored
    numbers = [modules[name]["layer"] for name in names]
    windows = window if isinstance(window, Mapping) else dict.fromkeys(numbers, window)
    stops = torch.tensor(lengths, device="cpu")[:, None]  # of a text's one row, in the mode "last_token"
    masks = []
    for number, q, k in zip(numbers, q_layers, k_layers, strict=True):
        mask, reach = Mask.causal(q.shape[2], k.shape[2], window=windows.get(number)), windows.get(number)
        if q.shape[2] != k.shape[2]:
            mask = Mask(torch.zeros_like(stops) if reach is None else (stops - reach).clamp_min(0), stops, k.shape[2])
        masks.append(mask)
    return record_tensors(
        q_layers, k_layers, mask=masks, scale=chosen, softcap=softcap, lengths=lengths, modules=names,
        layer_numbers=numbers, provenance={"model": f"vLLM-Hook's {folder.name}", "ranks": len(parts)},
    )  # fmt: skip


def _rank(folder: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]], list[int]]:
    """One rank's config, its modules' q, k and layer number, and the lengths of texts."""
    try:
        if (folder / "qk.pt").exists() and not (folder / "qk.safetensors").exists():
            raise RecordingError(
                f"{folder / 'qk.pt'} is a pickle, which may run anything when it is opened: run vLLM-Hook again with "
                f"VLLM_HOOK_USE_SAFETENSORS=1."
            )
        about = json.loads(read_bytes(folder / "qk.json", LARGEST_JSON))
        tensors = load_safetensors(read_bytes(folder / "qk.safetensors"))
        modules = {
            item["module_name"]: {
                "q": _tensor(tensors[item["key_q"]]),
                "k": _tensor(tensors[item["key_k"]]),
                "layer": int(item["layer_num"]),
            }
            for item in about["layer_order"]
        }
        lengths = [int(length) for length in about.get("seq_lens", ())]
        if any(not 0 < length <= MOST for length in lengths):
            raise ValueError("a length of a text")
        config = dict(cast("Mapping[str, Any]", about["config"]))
        for name in ("num_attention_heads", "hidden_size"):
            if type(config[name]) is not int or config[name] < 1:
                raise ValueError(f"{name}={config[name]!r}")
        config["attention_multiplier"] = float(config["attention_multiplier"])
    except FileNotFoundError as error:
        raise FileAccessError(
            f"{folder} lacks {Path(error.filename).name}: it is not a rank's folder from a run."
        ) from None
    except (FileAccessError, RecordingError):
        raise
    except OSError as error:
        raise no_access("read", folder, error) from error
    except (
        KeyError, TypeError, ValueError, AttributeError, OverflowError, RuntimeError, SafetensorError, EOFError
    ) as error:  # fmt: skip
        raise RecordingError(f"{folder} is not what vLLM-Hook writes, or is damaged: {error!r}.") from error
    return config, modules, lengths


def _tensor(value: Tensor) -> Tensor:
    if value.ndim not in (2, 3) or not value.is_floating_point():
        raise ValueError(f"a tensor of {value.dtype}, shape {tuple(value.shape)}")
    return value
