# The names of this package, each loaded when it is first used; editors and type checkers read this file as it is.
from .all import COST as COST
from .all import PROBES as PROBES
from .all import Probe as Probe
from .all import ask_probes as ask_probes
from .copying import CopyingScores as CopyingScores
from .copying import copying_scores as copying_scores
from .repeats import LATEST as LATEST
from .repeats import SUM as SUM
from .repeats import HeadScore as HeadScore
from .repeats import HeadScores as HeadScores
from .repeats import RepeatProbe as RepeatProbe
from .repeats import Repeats as Repeats
from .repeats import probe_repeats as probe_repeats
from .retrieval import RetrievalScores as RetrievalScores
from .retrieval import retrieval_scores as retrieval_scores
