"""Processes forked from this one, which has everything loaded: a new Python and its torch would take seconds."""

import json
import os
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist


def in_child(work: Callable[[], object]) -> int:
    """`work` in a process of its own, which ends with 0 if `work` does; its number."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(code)


def assert_killed(child: int) -> None:
    """It ends by signal 9, and not by itself."""
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL, "it ended by itself"


def forked(world: int, folder: Path, work: Callable[[int], dict[str, Any]]) -> list[dict[str, Any]]:
    """What `work(rank)` finds in each of so many processes that speak by gloo; {} of one that died."""
    folder.mkdir(parents=True, exist_ok=True)

    def member(rank: int) -> None:
        dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
        (folder / f"{rank}.json").write_text(json.dumps(work(rank)))

    for child in [in_child(lambda rank=rank: member(rank)) for rank in range(world)]:
        os.waitpid(child, 0)
    paths = [folder / f"{rank}.json" for rank in range(world)]
    return [json.loads(path.read_text()) if path.exists() else {} for path in paths]
