"""coterie: collaborative learning of personalised models.

Many agents each hold a little private data, and each wants its own model. They get better ones by exchanging models,
never data, with a few similar peers. Names are listed in ``__init__.pyi``, and imported when they are first used.
"""

import lazy_loader

from ._version import __version__ as __version__

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
