"""The local server of the studio: routes, safety, and answers without a socket."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
