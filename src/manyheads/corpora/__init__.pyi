# The names of this package, each loaded when it is first used; editors and type checkers read this file as it is.
from .corpus import NONE_FAILED as NONE_FAILED
from .corpus import Corpus as Corpus
from .corpus import Failure as Failure
from .corpus import Failures as Failures
from .corpus import Shard as Shard
from .corpus import as_corpus as as_corpus
from .corpus import corpus_of as corpus_of
from .corpus import is_about_texts as is_about_texts
from .corpus import reason_of as reason_of
from .lines import read_whole as read_whole
from .sources import EXAMPLE_SENTENCES as EXAMPLE_SENTENCES
from .sources import OWN_TEXT as OWN_TEXT
from .sources import gold_corpus as gold_corpus
from .sources import open_corpus as open_corpus
from .sources import own_corpora as own_corpora
from .sources import page_texts as page_texts
from .sources import reading_of as reading_of
