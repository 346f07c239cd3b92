# The names of this package, each loaded when it is first used; editors and type checkers read this file as it is.
from .examination import examine as examine
from .findings import ABSENT as ABSENT
from .findings import FINE as FINE
from .findings import NOTE as NOTE
from .findings import WRONG as WRONG
from .findings import in_words as in_words
from .imports import BACKEND as BACKEND
from .imports import BACKEND_REMEDY as BACKEND_REMEDY
from .imports import failed_import as failed_import
from .imports import refused_backend as refused_backend
