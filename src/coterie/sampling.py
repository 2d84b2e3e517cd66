"""How agents that learn their graph find peers to ask."""

from .core.wrap.sampling import CandidateList, FriendsOfFriends, PeerShuffling, Uniform

__all__ = ["CandidateList", "FriendsOfFriends", "PeerShuffling", "Uniform"]
