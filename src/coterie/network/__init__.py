"""Peers: agents that run as programs of their own and exchange letters as bytes."""

from .peer import Peer

__all__ = ["Peer"]
