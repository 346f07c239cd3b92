# The names of this package, each loaded when it is first used; editors and type checkers read this file as it is.
from .head_sums import HeadSums as HeadSums
from .head_sums import merged_sums as merged_sums
from .head_sums import require_whole as require_whole
from .loop import batches_of as batches_of
from .loop import by_model as by_model
from .loop import sums_of as sums_of
from .measurement import measure as measure
from .measurement import measure_call as measure_call
from .of_a_recording import statistics_of as statistics_of
from .pooling import MapPooling as MapPooling
from .pooling import pooled_maps as pooled_maps
from .study import Beside as Beside
from .study import SampleLink as SampleLink
from .study import Study as Study
from .study import study as study
