# The names of this package, each loaded when it is first used; editors and type checkers read this file as it is.
from .arguments import AsJson as AsJson
from .arguments import DeviceName as DeviceName
from .arguments import DtypeName as DtypeName
from .arguments import ModelChoice as ModelChoice
from .arguments import chosen_place as chosen_place
from .arguments import load_model as load_model
from .main import ASKED_WRONG as ASKED_WRONG
