"""Collaboration graphs: the immutable :class:`Graph`, and functions that make graphs.

Of a given shape: :func:`empty`, :func:`complete`, :func:`ring`, :func:`path`, :func:`star`, :func:`grid`,
:func:`erdos_renyi`, :func:`random_regular`, :func:`clusters`.

From the agents' models or positions: :func:`knn`, :func:`kernel`, :func:`angles`.

With one-way edges: :class:`DirectedGraph`, :func:`directed_ring`, :func:`directed_random`,
:func:`directed_exponential`.

Changing with time: :func:`sequence`, of :func:`matchings`, :func:`one_peer_exponential`, or any other graphs.

From given edges: ``Graph(W)``, ``Graph.from_edges`` and :func:`from_networkx`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
