# The names of this package, each loaded when it is first used; editors and type checkers read this file as it is.
from .files import MEMORY_SHARE as MEMORY_SHARE
from .files import free_memory_bytes as free_memory_bytes
from .files import no_access as no_access
from .files import read_bytes as read_bytes
from .files import refusal_in as refusal_in
from .files import replacing as replacing
from .files import users_folder as users_folder
from .files import users_home as users_home
from .grouping import check_groups as check_groups
from .grouping import divisors as divisors
from .html import html_table as html_table
from .processes import ALONE as ALONE
from .processes import PATIENCE as PATIENCE
from .processes import Ranks as Ranks
from .processes import is_split as is_split
from .processes import torchrun as torchrun
from .text import first_line as first_line
