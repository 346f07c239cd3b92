# The names of this package, each loaded when it is first used; editors and type checkers read this file as it is.
from .save import ZEROED as ZEROED
from .save import Only as Only
from .save import PrunedModel as PrunedModel
from .whole_folder import replacing_folder as replacing_folder
from .whole_folder import require_replaceable as require_replaceable
