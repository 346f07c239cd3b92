# The names of this package, each loaded when it is first used; editors and type checkers read this file as it is.
from .devices import NO_ACCELERATOR as NO_ACCELERATOR
from .devices import choose_device as choose_device
from .devices import devices_here as devices_here
from .devices import dtypes_of as dtypes_of
from .devices import free_bytes as free_bytes
from .devices import native_bf16 as native_bf16
from .devices import plain as plain
from .devices import require_dtype as require_dtype
from .processes import ALONE as ALONE
from .processes import PATIENCE as PATIENCE
from .processes import Ranks as Ranks
from .processes import is_sharded as is_sharded
from .processes import is_split as is_split
from .processes import torchrun as torchrun
