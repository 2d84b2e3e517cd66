"""Multi-task relationship learning: DMTRL.

Every task has weights, and the tasks have a covariance matrix, which is learned with them. See
:func:`coterie.relationship`.

===============  ==========================================================================================
learn            the front door
training         rounds, Omega-steps, and when to stop
server, worker   who knows the covariance, and who has the rows; what they send to each other
workers, actors  workers in this process, and on a Ray cluster
covariance       the covariance of the tasks, and what it costs; the certificate of the joint optimum
alternation      Omega-steps that do not stall
exact            the exact weights for a given covariance
sources          where the rows of a task come from
===============  ==========================================================================================
"""

from .exact import exact_weights
from .learn import relationship
from .results import Relationship
from .sources import gather, load_task

__all__ = ["Relationship", "exact_weights", "gather", "load_task", "relationship"]
