"""scikit-learn estimators that learn one model for each agent, together."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
