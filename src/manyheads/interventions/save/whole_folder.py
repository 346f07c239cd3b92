"""Folders that are written whole or not at all: beside their place, then exchanged with the old folder in one step.

Whatever happens on the way (no space, Ctrl-C, a crash), an older folder of that name stays as it was. Where the system
can exchange two folders at once (Linux), there is no moment without one; elsewhere the old one is moved aside first.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from manyheads import private_names
from manyheads.base import no_access, refusal_in, synced
from manyheads.errors import FileAccessError
from manyheads.models.weights import MARK

OURS = re.compile(
    r"README\.md|manyheads\.json|pruned\.safetensors|(model|pytorch_model)[-\w]*\.safetensors(\.index\.json)?|"
    r"(config|generation_config|tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab|merges|"
    r"preprocessor_config|processor_config|chat_template)\.(json|txt|jinja|model)|\w*(spm|piece|bpe)[.\w]*"
)  # the names of all files that a save by manyheads writes
AT_FDCWD, RENAME_EXCHANGE = -100, 2  # of Linux' renameat2


@contextmanager
def replacing_folder(
    path: str | os.PathLike[str], inside: str, model: object, names: re.Pattern[str] = OURS, mark: str = MARK
) -> Iterator[Path]:
    """A new folder beside `path`, which takes its place when the block ends well; `inside`: a subfolder it may have.

    An existing folder is replaced only if it is empty, or if an earlier save by manyheads wrote all of it (`mark` is in
    it, and nothing but such `names`); never the one that `model` was loaded from. Errors: FileAccessError for that,
    and for whatever the operating system refuses.
    """
    target = Path(os.path.realpath(path))
    require_replaceable(target, inside, names, mark)
    # What is left of a model must never replace the only copy of the model that it was cut from.
    source = private_names.origin_of(model)
    # By the path's real form on both sides: a link to the model's own folder is that folder.
    if source and target.exists() and any(target.iterdir()) and os.path.realpath(source) == str(target):
        raise FileAccessError(
            f"cannot write {target}: the model was loaded from there, and would be lost. Name a new folder."
        )
    # Beside the target, hence on the same file system: only there is a rename one step.
    temporary = target.parent / f".manyheads-{secrets.token_hex(6)}.tmp"
    try:
        temporary.mkdir()
        yield temporary
        readable = temporary.stat().st_mode & 0o666  # by whom new files are; safetensors' writer lets nobody else
        # On the disk before the folder gets its name: after a crash that name must not lead to empty files.
        for file in sorted(temporary.rglob("*")):
            if file.is_file():
                file.chmod(readable)
            synced(file)
        _put(temporary, target, lambda: require_replaceable(target, inside, names, mark))
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if (refusal := refusal_in(error)) is not None:
            raise no_access("write", path, refusal) from error
        raise
    with suppress(OSError):
        synced(target.parent)


def require_replaceable(target: Path, inside: str, names: re.Pattern[str] = OURS, mark: str = MARK) -> None:
    """Raises FileAccessError unless nothing but a save of ours would be lost. `inside`: a subfolder of it."""

    def is_ours(entry: Path) -> bool:
        if entry.is_symlink():
            return False
        if entry.is_dir():
            return entry.name == inside and all(
                file.is_file() and names.fullmatch(file.name) for file in entry.iterdir()
            )
        return names.fullmatch(entry.name) is not None

    if not target.exists():
        if not target.parent.is_dir():
            raise no_access("write", target, FileNotFoundError(errno.ENOENT, "no folder"))
        return
    if not target.is_dir():
        raise FileAccessError(f"cannot write {target}: it is a file. Name a folder.")
    entries = list(target.iterdir())
    strange = [entry.name for entry in entries if not is_ours(entry)]
    if entries and (strange or not (target / mark).is_file()):
        content = f"{strange[0]!r} in it is not of" if strange else "what is in it is not of"
        raise FileAccessError(
            f"cannot write {target}: it exists, and {content} an earlier save by manyheads. Only such "
            f"a save would be replaced. Name a new folder."
        )


def _put(new: Path, target: Path, require: Callable[[], None]) -> None:
    """Move `new` to `target`; the folder that was there is removed afterwards. `require` checks that it may be."""
    if not target.exists():
        try:
            os.rename(new, target)
            return
        # Another process may have made the folder since it was checked: it is checked again, then exchanged.
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            require()  # another process was first
    if not _exchanged(new, target):
        # Two renames, not one: for this moment there is no folder of that name, and an error puts the old one back.
        aside = target.parent / f".manyheads-{secrets.token_hex(6)}.old"
        os.rename(target, aside)
        try:
            os.rename(new, target)
        except OSError:
            os.rename(aside, target)  # the old folder back: nothing was changed
            raise
        new = aside
    shutil.rmtree(new, ignore_errors=True)


def _exchanged(new: Path, old: Path) -> bool:
    """Exchange two folders in one step; False where this system cannot. Python has no call for it, libc has."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    return rename(AT_FDCWD, os.fsencode(new), AT_FDCWD, os.fsencode(old), RENAME_EXCHANGE) == 0
