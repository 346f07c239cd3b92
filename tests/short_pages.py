"""The pages that labels rest on, cut to their first texts: quick, for tests to which the labels' worth is nothing."""

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

from manyheads.corpora import reading_of
from manyheads.corpora.own_texts import OwnTexts
from manyheads.models import LoadedModel


def short_readings(count: int) -> Callable[[str | LoadedModel], OwnTexts]:
    """In place of `manyheads.corpora.own_texts.reading_of`."""

    def short(model: str | LoadedModel) -> OwnTexts:
        whole = reading_of(model)
        texts = whole.texts()[:count]
        return replace(whole, texts=lambda: texts, digest=lambda: f"{whole.name}: {count} texts, for tests")

    return short


def shorten_pages(patch: Any, count: int) -> None:
    """Every place of the library that asks what a model reads gets `count` texts of it; `patch` undoes that."""
    import_module("manyheads.roles.shipped")  # before, so that labels that are shipped stay those of the whole page
    readings = short_readings(count)
    for place in ("corpora.own_texts", "corpora", "roles.labels", "roles.page_labels", "studio.state.workspace",
                  "studio.outside.one_file", "studio.outside.notebook"):  # fmt: skip
        patch.setattr(f"manyheads.{place}.reading_of", readings)
