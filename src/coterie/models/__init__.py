"""Models in Python: functions, and modules of PyTorch. Compiled ones are rules, :mod:`coterie.core.models`."""

from __future__ import annotations

from .function import Function
from .opaque import Opaque
from .torch_module import Torch

__all__ = ["Function", "Opaque", "Torch"]
