"""Claims about docs/reference/corpora.md: its numbers are the code's own. (Its code: tests/docs.)"""

from pathlib import Path

from manyheads.corpora import open_corpus
from manyheads.corpora.lines import ENDINGS, WHOLE_BYTES
from manyheads.corpora.treebanks import PASSAGE_WORDS

PAGE = (Path(__file__).parents[2] / "docs/reference/corpora.md").read_text(encoding="utf-8")


def test_the_page_names_every_ending_and_the_codes_own_numbers():
    assert all(f"`{ending}`" in PAGE for ending in ENDINGS)
    assert f"have {PASSAGE_WORDS} words together" in PAGE
    assert f"a file over {WHOLE_BYTES >> 20} MB" in PAGE
    assert str(PASSAGE_WORDS) in (open_corpus.__doc__ or "")
