# The names of this package, each loaded when it is first used; editors and type checkers read this file as it is.
from .means import Kind as Kind
from .means import WhyMeans as WhyMeans
from .means import WriterMean as WriterMean
from .means import why_means as why_means
from .question import why as why
from .result import LEAST_SHARE as LEAST_SHARE
from .result import NO_STORY as NO_STORY
from .result import Look as Look
from .result import PairShare as PairShare
from .result import Place as Place
from .result import WriterShare as WriterShare
from .weight import Why as Why
