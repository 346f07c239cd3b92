# The names of this package, each loaded when it is first used; editors and type checkers read this file as it is.
from .reproduction import Claim as Claim
from .reproduction import Reproduced as Reproduced
from .reproduction import Reproduction as Reproduction
from .reproduction import Result as Result
from .reproduction import Row as Row
from .reproduction import Task as Task
from .reproduction import markdown as markdown
from .reproduction import reproduce as reproduce
from .reproduction import reproduction_of as reproduction_of
from .table import REPRODUCTIONS as REPRODUCTIONS
