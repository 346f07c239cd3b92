# The names of this package, each loaded when it is first used; editors and type checkers read this file as it is.
from .codes import ClassReport as ClassReport
from .codes import ProgressCode as ProgressCode
from .codes import class_report as class_report
from .codes import progress_code as progress_code
from .codes import read_code as read_code
from .exercise import Exercise as Exercise
from .ioi import IOI_EXERCISES as IOI_EXERCISES
from .judging import SolutionVerdict as SolutionVerdict
from .judging import exercise_of as exercise_of
from .judging import judge as judge
from .solution_file import judge_file as judge_file
from .table import EXERCISES as EXERCISES
