"""Files that pages of the documentation show: what people copy is what contracts are tested with."""

from __future__ import annotations

import atexit
import shutil
import sys
import tempfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from docs import pages


def shown(page, file, folder=None):
    """A file of a page, written into a folder, or one that is gone at the end, and imported from there."""
    if folder is None:
        folder = tempfile.mkdtemp()
        atexit.register(shutil.rmtree, folder)
    blocks = pages.read(pages.ROOT / "docs" / page)
    [text] = [block.text for block in blocks if (block.mark, block.value) == ("file", file)]
    path = Path(folder, file)
    path.write_text(text, encoding="utf-8")
    spec = spec_from_file_location(path.stem, path)
    sys.modules[path.stem] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules[path.stem])
    return sys.modules[path.stem]
