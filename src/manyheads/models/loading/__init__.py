"""Models from a bundled name, a folder, a hub id, or in memory already."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
