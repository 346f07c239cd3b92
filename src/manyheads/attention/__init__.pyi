# The names of this package, each loaded when it is first used; editors and type checkers read this file as it is.
from .attention import FUSED_KERNELS as FUSED_KERNELS
from .attention import attend as attend
from .attention import log_sum_exp as log_sum_exp
from .attention import row_lse as row_lse
from .largest_logits import LargestScores as LargestScores
from .largest_logits import MaxLogitBounds as MaxLogitBounds
from .largest_logits import largest_scores as largest_scores
from .largest_logits import max_logits as max_logits
from .masks import DENSE_ROWS as DENSE_ROWS
from .masks import Mask as Mask
from .scores import Rule as Rule
from .scores import exact_arithmetic as exact_arithmetic
from .scores import exact_weights as exact_weights
from .scores import grouped_scores as grouped_scores
