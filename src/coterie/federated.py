"""Methods with a server: federated averaging, and those that give every client a model of its own."""

from .core.methods import APFL, IFCA, SCAFFOLD, Ditto, FedAvg, FedPer, FedProx, FedRep, PFedMe

__all__ = ["APFL", "IFCA", "SCAFFOLD", "Ditto", "FedAvg", "FedPer", "FedProx", "FedRep", "PFedMe"]
