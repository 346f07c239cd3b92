# The names of this package, each loaded when it is first used; editors and type checkers read this file as it is.
from .outputs import NOT_KEPT as NOT_KEPT
from .outputs import OTHERS as OTHERS
from .outputs import SENTENCES as SENTENCES
from .outputs import HeadOutput as HeadOutput
from .outputs import LayerOutput as LayerOutput
from .outputs import OutputRow as OutputRow
from .outputs import Voice as Voice
from .outputs import head_output as head_output
from .outputs import head_sentence as head_sentence
from .outputs import layer_output as layer_output
from .outputs import layer_sentence as layer_sentence
from .outputs import pass_sentence as pass_sentence
from .stream import Addition as Addition
from .stream import Additions as Additions
from .stream import StreamShares as StreamShares
from .stream import additions as additions
from .stream import stream_shares as stream_shares
