"""Long contexts: which heads need the whole context, what the others save, and the files that say so."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
