# The names of this package, each loaded when it is first used; editors and type checkers read this file as it is.
from .document import Document as Document
from .tokens import ROOT as ROOT
from .tokens import Gold as Gold
from .tokens import GoldWord as GoldWord
from .tokens import Mention as Mention
from .tokens import Sinks as Sinks
from .tokens import Tokens as Tokens
from .tokens import text_seed as text_seed
from .words import Words as Words
from .words import readable as readable
