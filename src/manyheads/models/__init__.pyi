# The names of this package, each loaded when it is first used; editors and type checkers read this file as it is.
from .dimensions import size as size
from .loading.checkpoints import BUNDLED as BUNDLED
from .loading.checkpoints import quietly as quietly
from .loading.load import LoadedModel as LoadedModel
from .loading.load import load as load
from .loading.offloaded import device_of as device_of
from .taps.call import AttentionCall as AttentionCall
from .taps.tap import tap as tap
from .weights.cut import kept_in as kept_in
