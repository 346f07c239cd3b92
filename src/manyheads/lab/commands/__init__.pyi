# The names of this package, each loaded when it is first used; editors and type checkers read this file as it is.
from .exercises import practice as practice
from .lessons import learn as learn
from .training import reproduce as reproduce
from .training import train as train
