"""The surroundings of the process: variables that change results, folders that it writes to, a port, a browser."""

from __future__ import annotations

import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from manyheads.base import nearest
from manyheads.doctor.findings import ABSENT, NOTE, WRONG, Finding, one_line, shown

THREADS = "how many threads compute: sums are added in another order, so last digits differ"
HUB = "where models of the hub are kept"
OFFLINE = "the hub is not asked: only what lies on this machine is loaded"
ROUNDED = "float32 products are rounded to fewer digits: the guard may refuse recordings"
PROCESSES = "this is one of several processes, which share a corpus (torchrun)"
VARIABLES: Mapping[str, str] = MappingProxyType(
    {
        "MANYHEADS_CACHE": "the folder where labels are remembered",
        "MANYHEADS_PASS": "what reads maps: kernels, tiles or auto; kernels is an error where there are none",
        "MANYHEADS_STATE": "the folder where progress in lessons is kept",
        "MANYHEADS_DEVICE": "the device that models are loaded on, where none is named",
        "MANYHEADS_GOLD": "tests: the folder of gold treebanks",
        "MANYHEADS_SEED": "tests: the seed of all random inputs, or fresh; without it each commit has its own",
        "MANYHEADS_CHROMIUM": "tests: the browser",
        "XDG_CACHE_HOME": "the folder of all caches, where MANYHEADS_CACHE says no other",
        "XDG_STATE_HOME": "the folder of all programs' state, where MANYHEADS_STATE says no other",
        "HF_HUB_OFFLINE": OFFLINE,
        "TRANSFORMERS_OFFLINE": OFFLINE,
        "HF_HOME": HUB,
        "HF_HUB_CACHE": HUB,
        "HF_ENDPOINT": "another hub is asked",
        "HF_TOKEN": "who you are to the hub",
        "OMP_NUM_THREADS": THREADS,
        "MKL_NUM_THREADS": THREADS,
        "ATEN_CPU_CAPABILITY": "which instructions torch may use: slower, and last digits differ",
        "ONEDNN_DEFAULT_FPMATH_MODE": ROUNDED,
        "DNNL_DEFAULT_FPMATH_MODE": ROUNDED,
        "NVIDIA_TF32_OVERRIDE": ROUNDED,
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": ROUNDED,
        "CUDA_VISIBLE_DEVICES": "which GPUs there are",
        "RANK": PROCESSES,
        "WORLD_SIZE": PROCESSES,
        "PYTHONOPTIMIZE": "manyheads' own invariants are not checked",
    }
)
"""The effect of each variable, where it is set."""

PREFIX = "MANYHEADS_"  # of our own
FAMILIES = (PREFIX, "TORCH_", "PYTORCH_", "HF_", "TRANSFORMERS_", "OMP_", "MKL_", "ATEN_", "ONEDNN_", "DNNL_",
            "CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_TF32")  # fmt: skip
ON, OFF = ("1", "ON", "YES", "TRUE"), ("0", "OFF", "NO", "FALSE")  # huggingface_hub.constants; upper or lower case
OURS = "HF_HUB_DISABLE_PROGRESS_BARS"  # the command itself sets it, for bars alone
SECRET = re.compile("TOKEN|KEY|SECRET|PASSWORD", re.IGNORECASE)
COUNT = re.compile(r"[1-9]\d*(,[1-9]\d*)*")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def variables() -> Iterator[Finding]:
    """Variables that are set and change results, or may. Values of secrets and of unknown variables are not shown."""
    count = 0
    for name, value in sorted(os.environ.items()):
        if value and name != OURS and (name in VARIABLES or name.startswith(FAMILIES)):
            count += 1
            yield _variable(name, value)
    if not count:
        yield Finding("variables", "none is set that would change a result")


def _variable(name: str, value: str) -> Finding:
    if name in VARIABLES:
        if name.endswith("_NUM_THREADS") and not COUNT.fullmatch(value.strip()):
            remedy = f"Set a number from 1 up, or unset {name}."
            return Finding(name, f"{value!r} is no number of threads", WRONG, remedy)
        if VARIABLES[name] == OFFLINE:
            # What huggingface_hub makes of it: it reads its own variable, and the other only where that one is not set.
            words, first = one_line(value), "HF_HUB_OFFLINE"
            if name != first and os.environ.get(first):
                return Finding(name, f"{words}: not read, since {first} is set", NOTE)
            if value.upper() in ON:
                return Finding(name, f"{words}: {OFFLINE}", NOTE)
            if value.upper() in OFF:
                return Finding(name, f"{words}: the hub is asked, as if this were not set", NOTE)
            remedy = f"Set 1 (or yes, true, on) where it should not be, or unset {name}."
            return Finding(name, f"{words!r} is not taken, so the hub is asked", WRONG, remedy)
        if name == "MANYHEADS_GOLD" and not Path(value).is_dir():
            return Finding(name, f"{one_line(value)} is no folder, so tests fail", WRONG, f"Correct or unset {name}.")
        words = "set" if SECRET.search(name) else one_line(value)
        return Finding(name, f"{words}: {VARIABLES[name]}", NOTE)
    if name.startswith(PREFIX):
        # By what follows: where the beginning counted, every name that has it would be alike.
        ours = [variable.removeprefix(PREFIX) for variable in VARIABLES if variable.startswith(PREFIX)]
        if meant := nearest(name.removeprefix(PREFIX), ours, 1):
            return Finding(name, "set, but nothing reads it", WRONG, f"Write {PREFIX}{meant[0]}, or unset it.")
        return Finding(name, "set, but nothing reads it", NOTE)
    return Finding(name, "set; not one that manyheads knows", NOTE)


def port() -> Iterator[Finding]:
    """Whether the studio finds its usual port. It takes the next free one where it does not."""
    # Deferred, as in `labels` and `progress`: the doctor must start where what these packages import is missing.
    from manyheads.studio import DEFAULT_PORT
    from manyheads.studio.server.serve import LOCAL  # deferred for the same reason

    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((LOCAL, DEFAULT_PORT))
        except OSError as error:
            words = f"{LOCAL}:{DEFAULT_PORT} cannot be had ({error.strerror or error})"
            yield Finding("port", f"{words}: the studio takes the next free one", NOTE)
            return
    yield Finding("port", f"{LOCAL}:{DEFAULT_PORT} is free")


def browser() -> Iterator[Finding]:
    """The Chromium that the tests of the studio's page drive."""
    chosen = os.environ.get("MANYHEADS_CHROMIUM")
    program = chosen or next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if program is None:
        yield Finding("Chromium", "none, so the studio's page is not tested", ABSENT, "To have it: make chromium")
    elif not shutil.which(program):
        yield Finding("Chromium", f"MANYHEADS_CHROMIUM={program} is no program", WRONG, "Name one, or unset it.")
    else:
        yield Finding("Chromium", f"{program}, for the tests of the studio's page")


def variables_markdown() -> str:
    """The table of docs/reference/doctor.md."""
    rows = [f"| `{name}` | {meaning} |" for name, meaning in VARIABLES.items()]
    return "\n".join(["| variable | what it does, where it is set |", "|---|---|", *rows])


def labels() -> Iterator[Finding]:
    """Where the labels of a model's heads are remembered."""
    from manyheads.roles.labels import cache_folder  # deferred: needs torch

    yield writable("labels", cache_folder(), "MANYHEADS_CACHE", "they are measured anew on every run")


def progress() -> Iterator[Finding]:
    """Where progress in lessons is kept."""
    from manyheads.lessons.progress import state_folder  # deferred: the doctor starts without it

    yield writable("progress in lessons", state_folder(), "MANYHEADS_STATE", "it is lost with every run")


def hub() -> Iterator[Finding]:
    """Where models of the hub are kept."""
    from huggingface_hub.constants import HF_HUB_CACHE

    yield writable("models of the hub", Path(HF_HUB_CACHE), "HF_HUB_CACHE", "none can be fetched")


def writable(subject: str, folder: Path, variable: str, otherwise: str) -> Finding:
    """Whether a folder can be written; one that is not there yet, whether it could be made."""
    above = next((parent for parent in (folder, *folder.parents) if parent.exists()), Path(os.sep))
    later = "" if above == folder else ", made when it is needed"
    try:
        with tempfile.TemporaryFile(dir=above):  # permissions alone tell too little: a disk may be full or read-only
            pass
    except OSError as error:
        words = f"{folder} cannot be written ({error.strerror or error}), so {otherwise}"
        return Finding(subject, words, WRONG, f"Name a folder that you may write to in {variable}.")
    return Finding(subject, f"{shown(folder)}{later}")
