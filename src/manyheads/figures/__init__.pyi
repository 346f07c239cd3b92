# The names of this package, each loaded when it is first used; editors and type checkers read this file as it is.
from .attribution import save_attribution as save_attribution
from .circuit import save_circuit as save_circuit
from .families import save_families as save_families
from .head import save_head as save_head
from .head_split import save_split as save_split
from .maps import save_grid as save_grid
from .palette import UNLABELLED as UNLABELLED
from .palette import ramp as ramp
from .palette import role_style as role_style
from .patching import save_patching as save_patching
from .picture import save_picture as save_picture
from .questions import save_roles as save_roles
from .removal_curve import save_curve as save_curve
from .sizing import save_sizing as save_sizing
