# The names of this package, each loaded when it is first used; editors and type checkers read this file as it is.
from .architecture import LAST as LAST
from .architecture import Architecture as Architecture
from .architecture import Attention as Attention
from .architecture import LayerShape as LayerShape
from .architecture import Weights as Weights
from .architecture import by_part as by_part
from .architecture import kind_of as kind_of
from .building_blocks import projections as projections
from .building_blocks import transformer as transformer
from .config import UnknownFamily as UnknownFamily
from .config import describe_config as describe_config
from .config import load_config as load_config
from .config import name_of as name_of
from .config import parsed as parsed
from .fields import FEW_LAYERS as FEW_LAYERS
from .fields import require_few_layers as require_few_layers
