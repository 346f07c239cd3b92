# The names of this package, each loaded when it is first used; editors and type checkers read this file as it is.
from .effect import CONTROLS as CONTROLS
from .effect import random_plans as random_plans
from .importance import Estimator as Estimator
from .importance import Way as Way
from .importance import check_bound as check_bound
from .importance import rank_correlation as rank_correlation
from .verdict import FEWEST_CONTROLS as FEWEST_CONTROLS
from .verdict import ROUNDING as ROUNDING
