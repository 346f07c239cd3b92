# The names of this package, each loaded when it is first used; editors and type checkers read this file as it is.
from .convert.convert import convert_to_gqa as convert_to_gqa
from .convert.table import seconds_in_turns as seconds_in_turns
from .effects.effect import Effect as Effect
from .effects.effect import effect as effect
from .effects.importance import Importance as Importance
from .effects.importance import Lowest as Lowest
from .effects.importance import importance as importance
from .effects.importance import lowest_heads as lowest_heads
from .effects.removal_curve import Curve as Curve
from .effects.verdict import Verdict as Verdict
from .effects.verdict import importance_verdict as importance_verdict
from .effects.verdict import verdict as verdict
from .prune import prune_heads as prune_heads
from .save.save import Saved as Saved
from .save.save import costs_of as costs_of
from .save.save import removed_text as removed_text
from .verify import difference as difference
