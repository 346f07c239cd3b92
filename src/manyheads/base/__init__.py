"""Base: whole files, locks, a cache, plain HTML tables, query groups, processes and words; used by every floor."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
