"""Multi-task relationship learning: DMTRL.

Every task has weights, and the covariance matrix of the tasks is learned together with the weights. See
:func:`coterie.relationship`.

===============  ==========================================================================================
learn            the public function :func:`coterie.relationship`
training         rounds, Omega-steps, and stopping rules
server, worker   the server with the covariance, workers with the rows, and their messages
workers, actors  workers in this process, and on a Ray cluster
covariance       the covariance of the tasks, in factors or as a matrix, and its penalty
certificate      lower bounds on the joint optimum
spectrum         singular values and eigenvalues of tall and of low-rank matrices
alternation      Omega-steps that reach the joint optimum
exact            the exact weights for a given covariance
sources          the rows of the tasks, in memory or loaded by workers
===============  ==========================================================================================
"""

from .covariance import Factors
from .exact import exact_weights
from .learn import relationship
from .results import Relationship

__all__ = ["Factors", "Relationship", "exact_weights", "relationship"]


def __dir__() -> list[str]:
    return sorted(__all__)
