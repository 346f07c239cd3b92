"""Pictures and sounds as a model's inputs, by themselves or among the tokens of a text."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
