"""Why a head looks there: a weight's log-odds, split over what wrote its query and its keys."""

# pyright: basic
# lazy_loader has no types; what the package offers is typed by the stub beside this file.
import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
