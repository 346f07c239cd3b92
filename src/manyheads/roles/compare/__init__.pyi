# The names of this package, each loaded when it is first used; editors and type checkers read this file as it is.
from .backups import backup_heads as backup_heads
from .families import HeadFamilies as HeadFamilies
from .families import head_diversity as head_diversity
from .families import head_families as head_families
from .rows import LEAST_KEYS as LEAST_KEYS
from .rows import MOST as MOST
from .rows import mixed as mixed
from .rows import pair_divergences as pair_divergences
from .rows import sharing_around as sharing_around
from .two_models import READINGS as READINGS
from .two_models import Comparison as Comparison
from .two_models import compare as compare
