"""Whether a config.json can mean the weights beside it, known before memory is asked for.

What: the layers that it claims against the tensors that are stored, and the numbers of the model that it means, built
without any (on the meta device), against the bytes of the files.
Why: transformers makes room for whatever a config claims and fills what is missing with random numbers; only then is
anybody told that the weights do not fit. A damaged number, or a config that was made for it, would end the machine.
Cost: building the shapes: 20 ms for `minilm`.
"""

from __future__ import annotations

from typing import Any

import torch

from manyheads.errors import ModelError
from manyheads.models.checkpoints import Checkpoint
from manyheads.sizing.families.fields import FEW_LAYERS
from manyheads.sizing.families.fields import require_few_layers

__all__ = ["require_plausible"]

MOST_FOR_A_BYTE = 4  # numbers: what packs them tightest has four in a byte
ROOM = 2**24  # numbers more than that, for what is not stored: tables of positions, masks, tied and missing weights


def require_plausible(cls: Any, checkpoint: Checkpoint) -> None:
    """Errors: ModelError for a config that means far more than is stored; SafetensorError, OSError as the files are."""
    from safetensors import safe_open
    from transformers.initialization import no_init_weights

    files = [checkpoint.folder / shard for shard in checkpoint.shards]
    num_bytes, num_tensors = sum(file.stat().st_size for file in files), 0
    for file in files:
        with safe_open(file, "pt") as opened:
            num_tensors += len(opened.keys())
    require_few_layers(checkpoint.config, max(FEW_LAYERS, num_tensors))
    if not hasattr(cls, "_from_config"):
        return
    try:
        config = cls.config_class.from_pretrained(checkpoint.folder, local_files_only=True)
        with torch.random.fork_rng(devices=[]), torch.device("meta"), no_init_weights():
            model = cls._from_config(config)
    except Exception:  # what is wrong with such a config, the loader itself says best
        return
    meant = sum(each.numel() for each in (*model.parameters(), *model.buffers()))
    if meant > MOST_FOR_A_BYTE * num_bytes + ROOM:
        raise ModelError(
            f"{checkpoint.folder} is damaged: its config.json means a {cls.__name__} of {meant:,} numbers, and its "
            f"weights are {num_bytes:,} bytes. Copy or fetch both anew."
        )
