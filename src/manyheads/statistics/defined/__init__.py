"""The statistics themselves, one file a group: what each asks of the pass, and how it finishes."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
