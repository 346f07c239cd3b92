# The names of this package, each loaded when it is first used; editors and type checkers read this file as it is.
from .lessons import learn as learn
from .practice import practice as practice
from .training import reproduce as reproduce
from .training import train as train
