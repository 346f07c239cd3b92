# The names of this package, each loaded when it is first used; editors and type checkers read this file as it is.
from .attribution import Attribution as Attribution
from .attribution import KeyShare as KeyShare
from .attribution import logit_attribution as logit_attribution
from .circuit import Circuit as Circuit
from .circuit import find_circuit as find_circuit
from .circuit import measure_circuit as measure_circuit
from .patching import Direction as Direction
from .patching import Patch as Patch
from .patching import PatchEstimator as PatchEstimator
from .patching import Patching as Patching
from .patching import What as What
from .patching import patch as patch
from .paths import PathEffect as PathEffect
from .paths import path_effect as path_effect
from .paths import path_effects as path_effects
from .virtual_weights import Composition as Composition
from .virtual_weights import composition as composition
