"""What a head writes and what it looks for, in tokens: from its weights, and on a text."""

# pyright: basic
# lazy_loader has no types; what the package offers is typed by the stub beside this file.
import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
