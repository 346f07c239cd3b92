# The names of this package, each loaded when it is first used; editors and type checkers read this file as it is.
from .bundled_texts import EXAMPLE_SENTENCES as EXAMPLE_SENTENCES
from .bundled_texts import OWN_TEXT as OWN_TEXT
from .bundled_texts import gold_corpus as gold_corpus
from .bundled_texts import own_corpora as own_corpora
from .bundled_texts import page_texts as page_texts
from .bundled_texts import reading_of as reading_of
from .corpus import NONE_FAILED as NONE_FAILED
from .corpus import Corpus as Corpus
from .corpus import Document as Document
from .corpus import Failure as Failure
from .corpus import Failures as Failures
from .corpus import as_corpus as as_corpus
from .corpus import corpus_of as corpus_of
from .corpus import is_about_texts as is_about_texts
from .corpus import reason_of as reason_of
from .lines import read_whole as read_whole
from .open import open_corpus as open_corpus
