"""Where something is kept between two runs, and whether it can be."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from manyheads.doctor.findings import WRONG, Finding, shown


def labels() -> Iterator[Finding]:
    """Where the labels of a model's heads are remembered."""
    from manyheads.roles.labels import cache_folder

    yield kept("labels", cache_folder(), "MANYHEADS_CACHE", "they are measured anew on every run")


def progress() -> Iterator[Finding]:
    """Where it is kept how far a learner is."""
    from manyheads.lessons.progress import state_folder

    yield kept("progress in lessons", state_folder(), "MANYHEADS_STATE", "it is lost with every run")


def hub() -> Iterator[Finding]:
    """Where models of the hub are kept."""
    from huggingface_hub.constants import HF_HUB_CACHE

    yield kept("models of the hub", Path(HF_HUB_CACHE), "HF_HUB_CACHE", "none can be fetched")


def kept(subject: str, folder: Path, variable: str, otherwise: str) -> Finding:
    """Whether a folder can be written; one that is not there yet, whether it could be made."""
    above = next((each for each in (folder, *folder.parents) if each.exists()), Path(os.sep))
    later = "" if above == folder else ", made when it is needed"
    try:
        with tempfile.TemporaryFile(dir=above):
            pass
    except OSError as error:
        said = f"{folder} cannot be written ({error.strerror or error}), so {otherwise}"
        return Finding(subject, said, WRONG, f"Name a folder that you may write to in {variable}.")
    return Finding(subject, f"{shown(folder)}{later}")
