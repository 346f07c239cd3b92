"""What a model reads: texts, pictures and sounds, what it generates; and the passes that read them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
