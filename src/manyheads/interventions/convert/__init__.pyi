# The names of this package, each loaded when it is first used; editors and type checkers read this file as it is.
from .convert import Converted as Converted
