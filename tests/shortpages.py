"""The pages that labels rest on, cut to their first texts: quick, for tests to which the labels' worth is nothing."""

from collections.abc import Callable
from dataclasses import replace

from manyheads.corpora import reading_of
from manyheads.corpora.bundled_texts import Reading


def short_readings(count: int) -> Callable[[str], Reading]:
    """In place of `manyheads.corpora.bundled_texts.reading_of`."""

    def short(model: str) -> Reading:
        whole = reading_of(model)
        texts = whole.texts()[:count]
        return replace(whole, texts=lambda: texts, digest=lambda: f"{whole.name}: {count} texts, for tests")

    return short
