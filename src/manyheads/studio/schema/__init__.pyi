# The names of this package, each loaded when it is first used; editors and type checkers read this file as it is.
from .base import AnswerBody as AnswerBody
from .base import Number as Number
from .base import RequestBody as RequestBody
from .experiments import SceneName as SceneName
