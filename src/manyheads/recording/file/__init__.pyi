# The names of this package, each loaded when it is first used; editors and type checkers read this file as it is.
from .format import LARGE_FILE as LARGE_FILE
from .safetensors_io import bytes_of as bytes_of
from .safetensors_io import read_state as read_state
from .safetensors_io import write_state as write_state
