# The names of this package, each loaded when it is first used; editors and type checkers read this file as it is.
from .application import applied as applied
from .computed import open_plan as open_plan
from .edits import Editor as Editor
from .metrics import METRICS as METRICS
from .metrics import choose_metric as choose_metric
from .runner import Calls as Calls
from .runner import Runner as Runner
from .runner import plan_edits as plan_edits
from .runner import read_under as read_under
