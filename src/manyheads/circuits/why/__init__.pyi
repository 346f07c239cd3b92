# The names of this package, each loaded when it is first used; editors and type checkers read this file as it is.
from .question import why as why
from .result import Look as Look
from .result import PairShare as PairShare
from .result import Why as Why
from .result import WriterShare as WriterShare
