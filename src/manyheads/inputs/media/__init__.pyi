# The names of this package, each loaded when it is first used; editors and type checkers read this file as it is.
from .pictures_and_sounds import ImageLike as ImageLike
from .pictures_and_sounds import picture_of as picture_of
from .pictures_and_sounds import require_sense as require_sense
from .pictures_and_sounds import shown as shown
from .pictures_and_sounds import sounds_of as sounds_of
