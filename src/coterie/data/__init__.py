"""Examples grouped by agent, read from tables and files: names are in ``__init__.pyi``, imported when first used."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
