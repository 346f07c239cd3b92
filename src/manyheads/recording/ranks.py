"""Recordings of several processes, brought to one of them: a model whose heads are split (tensor parallel) as one.

Under tensor parallelism a process computes some of each layer's heads, and records those. What travels is the file
format, bytes that are checked when they are read: nothing is pickled. Cost: every recording once over the network, and
all of them in the first process's memory and temporary folder.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from manyheads.errors import RecordingError
from manyheads.recording.files import open_recording, save_recording
from manyheads.recording.joining import heads_together
from manyheads.recording.records import Recording

__all__ = ["gathered"]


def gathered(recording: Recording, group: Any = None) -> Recording | None:
    """All heads of a model whose heads are split over the processes of `group` (all of them unless said), by rank.

    Every process of the group must call it, with its recording of the same texts. The first one gets the recording of
    all heads, in the order of ranks; the others get None. Errors: RecordingError where no process group is open, and
    as `joining.heads_together`'s, in the first process.
    """
    if not dist.is_available() or not dist.is_initialized():
        raise RecordingError("no process group is open: call torch.distributed.init_process_group first.")
    place = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        save_recording(recording, Path(folder) / "own.heads")
        own = torch.frombuffer(bytearray((Path(folder) / "own.heads").read_bytes()), dtype=torch.uint8).to(place)
        sizes = [torch.zeros(1, dtype=torch.long, device=place) for _ in range(dist.get_world_size(group))]
        dist.all_gather(sizes, torch.tensor([len(own)], device=place), group=group)
        longest = int(torch.cat(sizes).max())
        sent = torch.nn.functional.pad(own, (0, longest - len(own)))
        here = dist.get_rank(group) == 0
        came = [torch.empty_like(sent) for _ in sizes] if here else None
        dist.gather(sent, came, group=group, group_dst=0)
        if came is None:
            return None
        for rank, (data, size) in enumerate(zip(came, sizes, strict=True)):
            (Path(folder) / f"{rank}.heads").write_bytes(data[: int(size)].cpu().numpy().tobytes())
        return heads_together([open_recording(Path(folder) / f"{rank}.heads") for rank in range(len(sizes))])
