# The names of this package, each loaded when it is first used; editors and type checkers read this file as it is.
from .from_weights import CLEAR as CLEAR
from .from_weights import MATCHING as MATCHING
from .from_weights import Ranks as Ranks
from .from_weights import TraceShare as TraceShare
from .head_writes import TokenTable as TokenTable
from .head_writes import Writes as Writes
from .head_writes import writes as writes
from .head_writes import writes_of as writes_of
from .on_text import Pole as Pole
from .on_text import Position as Position
from .on_text import ReadDirection as ReadDirection
from .trace_share import Products as Products
from .trace_share import centred_product as centred_product
from .trace_share import eigenvalue_score as eigenvalue_score
from .vocabulary import SOURCES as SOURCES
from .vocabulary import Source as Source
