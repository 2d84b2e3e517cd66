"""Methods without a server for any differentiable model, and partial pooling by gossip."""

from .core.methods import DPSGD, GossipPooling, GradientTracking, LocalSGD, PushSum, ResilientPooling, TiedSGD

__all__ = ["DPSGD", "GossipPooling", "GradientTracking", "LocalSGD", "PushSum", "ResilientPooling", "TiedSGD"]
