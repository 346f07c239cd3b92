"""What a reader of a page has at hand: a treebank, some texts, a folder with a config. Only what the page names."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path


def bring(text: str, folder: Path) -> None:
    """Put into `folder` what `text` speaks of, but for what it saves itself."""
    for name, make in WHAT_READERS_HAVE.items():
        if name in text and f'save("{name}")' not in text:
            make(folder / name)


def _texts(path: Path) -> None:
    path.write_text("The cat sat on the mat because it was tired.\n\nA dog that saw the cat ran home.\n\nRain fell.\n")


def _treebank(path: Path) -> None:
    shutil.copy(str(files("manyheads.corpora") / "sentences.conllu"), path)


def _config(path: Path) -> None:
    path.mkdir()
    sizes = {"n_embd": 48, "n_layer": 2, "n_head": 6, "n_positions": 64, "vocab_size": 97}
    (path / "config.json").write_text(json.dumps({"model_type": "gpt2", **sizes}))


def _python(path: Path) -> None:
    path.write_text(Path(json.__file__).read_text(encoding="utf-8"), encoding="utf-8")


def _recording(path: Path) -> None:
    import manyheads as mh

    mh.record(mh.load("minilm"), "The cat sat on the mat because it was tired.").save(path)


WHAT_READERS_HAVE: dict[str, Callable[[Path], None]] = {
    "texts.txt": _texts,
    "text.txt": _texts,
    "novel.txt": _texts,
    "sentences.txt": _texts,
    "treebank.conllu": _treebank,
    "my-model/": _config,
    "long.py": _python,
    "cat.heads": _recording,
}
