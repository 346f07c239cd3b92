# The names of this package, each loaded when it is first used; editors and type checkers read this file as it is.
from .chunks import SURVEY_TEXTS as SURVEY_TEXTS
from .chunks import Chunk as Chunk
from .chunks import Chunked as Chunked
from .chunks import Wanted as Wanted
from .chunks import chunks_of as chunks_of
from .chunks import code_digest as code_digest
from .chunks import config_digest as config_digest
from .chunks import config_of as config_of
from .chunks import read_chunk as read_chunk
from .head_sums import HeadSums as HeadSums
from .head_sums import merged_sums as merged_sums
from .head_sums import require_whole as require_whole
from .store import require_own as require_own
from .worker import RunRequest as RunRequest
