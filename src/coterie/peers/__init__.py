"""Peers: agents that run as programs of their own and exchange messages as bytes."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
