"""scikit-learn estimators that learn one model for each agent, together."""

from .collaborative import CollaborativeClassifier, CollaborativeRegressor

__all__ = ["CollaborativeClassifier", "CollaborativeRegressor"]
