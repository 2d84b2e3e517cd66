"""coterie: collaborative learning of personalised models.

Each of many agents holds a little private data, and trains a model of its own. Agents improve their models by
exchanging models, never data, with a few similar peers. Public names are listed in ``__init__.pyi``, and imported when
they are first used.
"""

from typing import Any

import lazy_loader

from ._version import __version__ as __version__

_find, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

#: Names that were in this module in version 0.1, by the module that has them now.
_ROOMS = {
    "baselines": "ComponentModels GlobalModel LocalModels RidgeToMean",
    "compression": "Compressed Float32 Quantised TopK",
    "data": "Source",
    "engines": "ShardedProblem",
    "estimators": "Report",
    "federated": "APFL IFCA SCAFFOLD Ditto FedAvg FedPer FedProx FedRep PFedMe",
    "gossip": "DPSGD GossipPooling GradientTracking LocalSGD PushSum ResilientPooling TiedSGD",
    "models": "Function Softmax Torch TwoLayer",
    "multitask": "Relationship",
    "observers": "progress_bar",
    "optim": "SGD Adam",
    "robust": "Attacked Clipping Consensus GeometricMedian Krum Median Trimmed TrimmedMean flip_labels",
    "studies": "Comparison Evaluation Evaluator Study study",
}
_MOVED = {name: f"{room}.{name}" for room, names in _ROOMS.items() for name in names.split()} | {
    "Candidates": "sampling.CandidateList",
    "Friends": "sampling.FriendsOfFriends",
    "Ideal": "sampling.Uniform",
    "Lie": "robust.Attack",
    "Recorder": "observers.FileRecorder",
    "Shuffle": "sampling.PeerShuffling",
}


def __getattr__(name: str) -> Any:
    """Import and return a public name; for a name of version 0.1, raise an error that names its new place."""
    if name in _MOVED:
        raise AttributeError(f"coterie.{name} is now coterie.{_MOVED[name]}")
    return _find(name)
