"""Practice: ten functions of attention to write, judged by running them beside the reference."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
