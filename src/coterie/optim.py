"""Optimisers for methods that train: how an agent steps from its gradients."""

from .core.training import SGD, Adam

__all__ = ["SGD", "Adam"]
