"""Folders that the studios of tests serve, and the text that they read."""

from pathlib import Path

import manyheads as mh
from tests.models.tiny import save_tiny, tiny_llama, tiny_tokenizer

TEXT = "The cat sat on the mat because it was tired, and the dog that saw the cat sat down beside it."


def save_mixed(folder: Path) -> Path:
    """Recordings, a checkpoint, and what is neither."""
    save_tiny(tiny_llama(2), folder / "tiny-llama", tiny_tokenizer())
    lm = mh.load(str(folder / "tiny-llama"))
    mh.record(lm, ["the cat sat on the mat", "the dog"]).save(folder / "two.heads")
    (folder / "damaged.heads").write_bytes((folder / "two.heads").read_bytes()[:2000])
    (folder / "secret.txt").write_text("nobody may read this")
    return folder


def save_few(folder: Path) -> Path:
    """A checkpoint, and a recording of it."""
    save_tiny(tiny_llama(2), folder / "tiny-llama", tiny_tokenizer())
    mh.record(mh.load(str(folder / "tiny-llama")), "the cat sat on the mat").save(folder / "cat.heads")
    return folder
