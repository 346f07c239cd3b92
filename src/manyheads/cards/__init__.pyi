# The names of this package, each loaded when it is first used; editors and type checkers read this file as it is.
from .evidence import Measured as Measured
from .head_card import Card as Card
from .head_card import Fact as Fact
from .head_card import Section as Section
from .head_card import TextMap as TextMap
from .sections import card as card
from .sections import cards as cards
from .site import require_writable as require_writable
from .site import write_cards as write_cards
