from .boosted import BoostedClassifier, BoostedRegressor
from .collaborative import CollaborativeClassifier, CollaborativeRegressor
from .relationship import RelationshipClassifier, RelationshipRegressor
from .report import Report

__all__ = [
    "BoostedClassifier",
    "BoostedRegressor",
    "CollaborativeClassifier",
    "CollaborativeRegressor",
    "RelationshipClassifier",
    "RelationshipRegressor",
    "Report",
]
