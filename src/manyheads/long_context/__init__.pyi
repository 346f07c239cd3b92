# The names of this package, each loaded when it is first used; editors and type checkers read this file as it is.
from .head_list_formats import FORMATS as FORMATS
from .head_lists import read_heads as read_heads
from .head_lists import retrieval_scores as retrieval_scores
from .head_split import HeadSplit as HeadSplit
from .needles import Needle as Needle
from .needles import needle_scores as needle_scores
from .retrieval_heads import split_heads as split_heads
from .split_layer import SplitLayer as SplitLayer
from .streaming_cache import Streaming as Streaming
from .streaming_cache import StreamingCache as StreamingCache
from .streaming_cache import streaming as streaming
