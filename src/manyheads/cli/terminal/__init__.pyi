# The names of this package, each loaded when it is first used; editors and type checkers read this file as it is.
from .console import clean as clean
from .console import emit as emit
from .console import emit_document as emit_document
from .console import hanging as hanging
from .console import print_cut as print_cut
from .console import print_listing as print_listing
from .console import print_whole as print_whole
from .console import shortened as shortened
from .console import stdout_console as stdout_console
from .progress import ProgressLine as ProgressLine
