"""What is here to look at: models, files, and how much of each the server takes."""

from __future__ import annotations

from pydantic import Field

from manyheads.studio.schema.base import Said


class ModelEntry(Said):
    """A model that can be chosen: bundled, or a folder of the workspace. `unavailable`: why it cannot be, else null."""

    name: str
    title: str
    bundled: bool
    loaded: bool
    unavailable: str | None


class FileEntry(Said):
    """A recording among the workspace's files; `id` is its recording's."""

    name: str
    id: str
    num_bytes: int
    unreadable: str | None


class Limits(Said):
    max_text: int
    max_steps: int
    max_running: int


class Workspace(Said):
    """What is here to look at. `can_write`: whether there is a folder to write pruned checkpoints to (`folder`)."""

    version: str
    models: list[ModelEntry]
    files: list[FileEntry]
    default_model: str | None
    default_text: str
    opened: str | None = Field(description="the recording that the command line named, opened first")
    folder: str
    can_write: bool
    limits: Limits
