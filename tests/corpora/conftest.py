"""Treebanks from the folder that $MANYHEADS_GOLD names. Nobody needs them: without it these tests skip and say so."""

import os
from pathlib import Path

import pytest

from manyheads.corpora import open_corpus
from manyheads.texts import Document


def treebank(name: str) -> Path:
    folder = os.environ.get("MANYHEADS_GOLD")
    if not folder:
        pytest.skip("MANYHEADS_GOLD does not name a folder of treebanks")
    path = Path(folder) / name
    if not path.is_file():
        pytest.skip(f"MANYHEADS_GOLD={folder} holds no {name}")
    return path


@pytest.fixture(scope="session")
def ewt() -> Path:
    """The English Web Treebank, dev: syntax."""
    return treebank("en_ewt-ud-dev.conllu")


@pytest.fixture(scope="session")
def gum() -> Path:
    """GUM, dev, without its genres of non-commercial licences: syntax and coreference."""
    return treebank("en_gum-ud-dev-free.conllu")


@pytest.fixture(scope="session")
def ewt_sentences(ewt) -> tuple[Document, ...]:
    return tuple(open_corpus(ewt).open())


@pytest.fixture(scope="session")
def gum_sentences(gum) -> tuple[Document, ...]:
    return tuple(open_corpus(gum).open())


@pytest.fixture(scope="session")
def gum_passages(gum) -> tuple[Document, ...]:
    return tuple(open_corpus(gum, unit="passage").open())
