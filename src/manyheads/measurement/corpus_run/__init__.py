"""A run over a corpus: read in chunks, kept in a folder as it goes, and its sums as a value that adds."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
