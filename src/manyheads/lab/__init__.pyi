# The names of this package, each loaded when it is first used; editors and type checkers read this file as it is.
from . import commands as commands
from . import design as design
from . import lessons as lessons
from . import practice as practice
from . import reproductions as reproductions
from . import room as room
from . import training as training
from .design.patterns import HeadDesign as HeadDesign
