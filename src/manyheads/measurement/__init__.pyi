# The names of this package, each loaded when it is first used; editors and type checkers read this file as it is.
from .loop import by_model as by_model
from .loop import sums_of as sums_of
from .measurement import measure as measure
from .measurement import measure_call as measure_call
from .measurement import measure_corpus as measure_corpus
from .of_a_recording import EVERY_ROW as EVERY_ROW
from .of_a_recording import measure_recording as measure_recording
from .of_a_recording import sinks_of as sinks_of
from .of_a_recording import statistics_of as statistics_of
from .pooling import MapPooling as MapPooling
from .pooling import PooledMaps as PooledMaps
from .pooling import pooled_maps as pooled_maps
from .split_heads import place_of as place_of
from .table_and_recording import Beside as Beside
from .table_and_recording import SampleLink as SampleLink
from .table_and_recording import study as study
