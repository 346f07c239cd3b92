# The names of this package, each loaded when it is first used; editors and type checkers read this file as it is.
from .alert_rules import RULES as RULES
from .alert_rules import AlertRule as AlertRule
from .alert_rules import HeadAlert as HeadAlert
from .alert_rules import alerts as alerts
from .alert_rules import rules_with as rules_with
from .callbacks import HeadWatch as HeadWatch
from .history import FIRST_PART as FIRST_PART
from .history import HeadCurves as HeadCurves
from .history import HeadHistory as HeadHistory
from .history import open_history as open_history
from .loggers import Logger as Logger
from .loggers import log_pictures as log_pictures
from .qk_clip import QKClip as QKClip
from .training_steps import Watch as Watch
from .training_steps import WatchCallback as WatchCallback
from .training_steps import watch as watch
from .watched_step import WatchedStep as WatchedStep
