# The names of this package, each loaded when it is first used; editors and type checkers read this file as it is.
from .passes import observe as observe
from .passes import read_batches as read_batches
from .passes import watch as watch
from .reading import BATCH_TOKENS as BATCH_TOKENS
from .reading import CallTexts as CallTexts
from .reading import Long as Long
from .reading import Piece as Piece
from .reading import Reading as Reading
from .reading import batches as batches
from .reading import model_inputs as model_inputs
from .reading import read_texts as read_texts
from .reading import tokens_of as tokens_of
from .recorder import record as record
from .recorder import record_call as record_call
