# The names of this package, each loaded when it is first used; editors and type checkers read this file as it is.
from .effect import CONTROLS as CONTROLS
from .importance import Estimator as Estimator
from .importance import Way as Way
from .importance import rank_correlation as rank_correlation
from .verdict import ROUNDING as ROUNDING
