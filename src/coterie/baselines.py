"""Models to compare with: alone, all as one, one for each component of the graph, drawn to the mean."""

from .problem.baselines import ComponentModels, GlobalModel, LocalModels, RidgeToMean

__all__ = ["ComponentModels", "GlobalModel", "LocalModels", "RidgeToMean"]
