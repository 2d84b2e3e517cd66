"""coterie: collaborative learning of personalised models.

Many agents each hold a little private data, and each wants its own model. They get better ones by exchanging models,
never data, with a few similar peers. Names are listed in ``__init__.pyi``, and imported when they are first used.
"""

from typing import Any

import lazy_loader

from ._version import __version__ as __version__

_find, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

#: Names that stood here in version 0.1, by the room in which they are now.
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
    """The public name, imported now; for a name of version 0.1, an error that says where it is."""
    if name in _MOVED:
        raise AttributeError(f"coterie.{name} is now coterie.{_MOVED[name]}")
    return _find(name)
