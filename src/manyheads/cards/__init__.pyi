# The names of this package, each loaded when it is first used; editors and type checkers read this file as it is.
from .card import Card as Card
from .card import Fact as Fact
from .card import Section as Section
from .card import TextMap as TextMap
from .cards import cards as cards
from .measured import Measured as Measured
from .site import require_writable as require_writable
from .site import write_cards as write_cards
