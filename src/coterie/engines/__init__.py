"""Engines run methods: they decide which agent wakes when, and when a message arrives.

The handlers of a method do not change.

Names are listed in ``__init__.pyi``, and imported when they are first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
