# The names of this package, each loaded when it is first used; editors and type checkers read this file as it is.
from .outside.one_file import MOST_CHARS as MOST_CHARS
from .outside.one_file import write_report as write_report
from .outside.show import show as show
from .outside.site import publish as publish
from .outside.site import require_publishable as require_publishable
from .problems import NotHere as NotHere
from .schema.base import MAX_TEXT as MAX_TEXT
from .server.app import answer as answer
from .server.app import create_app as create_app
from .server.serve import bind as bind
from .server.serve import serve as serve
from .server.serve import warm as warm
from .session import Desk as Desk
from .session import address_of as address_of
from .session import desk_with as desk_with
from .session import open_text as open_text
from .state.workspace import Workspace as Workspace
