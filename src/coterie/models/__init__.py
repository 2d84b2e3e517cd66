"""Differentiable models: user-defined functions, PyTorch modules, and two compiled models."""

from __future__ import annotations

from ..core.models import Softmax, TwoLayer
from .function import Function
from .torch_module import Torch

__all__ = ["Function", "Softmax", "Torch", "TwoLayer"]


def __dir__() -> list[str]:
    return sorted(__all__)
