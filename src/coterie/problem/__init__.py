"""The papers' objectives: problems, exact solutions and baselines; imported when first used, as a peer needs none."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
