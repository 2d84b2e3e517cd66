"""Multi-task relationship learning: DMTRL.

Every task has weights, and the tasks have a covariance matrix, which is learned with them. See
:func:`coterie.relationship`.

===============  ==========================================================================================
learn            the front door
training         rounds, Omega-steps, and when to stop
server, worker   who knows the covariance, and who has the rows; what they send to each other
workers, actors  workers in this process, and on a Ray cluster
covariance       the covariance of the tasks, in factors or as a matrix, and what it costs
certificate      lower bounds on the joint optimum
spectrum         singular values and eigenvalues of tall and of low-rank matrices
alternation      Omega-steps that do not stall
exact            the exact weights for a given covariance
sources          where the rows of the tasks are
===============  ==========================================================================================
"""

from .covariance import Factors
from .exact import exact_weights
from .learn import relationship
from .results import Relationship

__all__ = ["Factors", "Relationship", "exact_weights", "relationship"]
