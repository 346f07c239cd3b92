# The names of this package, each loaded when it is first used; editors and type checkers read this file as it is.
from .caches import KVCache as KVCache
from .feed_forward import FeedForward as FeedForward
from .feed_forward import SwiGLU as SwiGLU
from .feed_forward import gated_width as gated_width
from .head_parallel import HeadParallel as HeadParallel
from .layer import MultiHeadAttention as MultiHeadAttention
from .mixing import LayerCall as LayerCall
from .mixing import add_hook as add_hook
from .mixing import remove_hook as remove_hook
from .positions import RelativeBias as RelativeBias
from .positions import Rope as Rope
from .positions import RotaryTable as RotaryTable
from .projections import FusedProjections as FusedProjections
from .projections import Projection as Projection
from .state_dicts import dump_state as dump_state
from .state_dicts import layer_from_config as layer_from_config
from .state_dicts import load_state as load_state
