"""Differentiable models: a function of one's own, a module of PyTorch, and two that are compiled."""

from __future__ import annotations

from ..core.models import Softmax, TwoLayer
from .function import Function
from .torch_module import Torch

__all__ = ["Function", "Softmax", "Torch", "TwoLayer"]
