"""Peers: agents that run as programs of their own and exchange letters as bytes."""

from typing import TYPE_CHECKING

from .._lazy import lazy

if TYPE_CHECKING:
    from ..engines.peer import Peer, Post
    from .agreement import Charter, Roster
    from .node import Node
else:  # commands of peers choose first whether anything is compiled
    __getattr__, __dir__ = lazy(__name__, {".engines.peer": "Peer Post", "agreement": "Charter Roster", "node": "Node"})

__all__ = ["Charter", "Node", "Peer", "Post", "Roster"]
