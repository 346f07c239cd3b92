"""Where the weights of each head lie in a model, how to cut them, and the compact form on disk."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
