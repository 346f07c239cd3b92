# The names of this package, each loaded when it is first used; editors and type checkers read this file as it is.
from .bundled import fetch_bundled as fetch_bundled
from .bundled import find_bundled as find_bundled
from .bundled import is_here as is_here
from .checkpoints import brief as brief
from .checkpoints import find_checkpoint as find_checkpoint
from .checkpoints import is_hub_id as is_hub_id
from .load import refusing_head_mask as refusing_head_mask
from .load import weights_dtype as weights_dtype
from .pretrained import has_tokenizer_files as has_tokenizer_files
from .pretrained import tokenizer_beside as tokenizer_beside
from .protocols import OPTIONS as OPTIONS
from .protocols import Processor as Processor
from .protocols import Tokenizer as Tokenizer
