"""Messages with fewer bytes: a method around another, and the ways to compress numbers."""

from .core.wrap.compressed import Compressed
from .core.wrap.compression import Float32, Quantised, TopK

__all__ = ["Compressed", "Float32", "Quantised", "TopK"]
