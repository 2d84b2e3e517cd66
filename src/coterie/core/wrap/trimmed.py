"""A method that does not follow the extremes of what it hears: ``Trimmed(method, fraction)``.

It is :class:`~coterie.core.wrap.robust.Robust` with a trimmed mean: coordinate by coordinate, the smallest and the
largest values stand at the mean of the others,

    copy_i[j] = said_i[j] if it is kept, else mean_i,    mean_i = sum_{j kept} W_ij said_i[j] / sum_{j kept} W_ij,

so that  sum_j W_ij copy_i[j] = D_ii mean_i:  all neighbours together pull as strongly as ever, towards the trimmed mean
(Yin, Chen, Ramchandran and Bartlett, 2018, "Byzantine-Robust Distributed Learning", with the weights of the ties).

Values are ordered by size, those of equal size by weight, and trimmed by number; the mean goes by weight.
"""

from __future__ import annotations

from ..compile import kernel
from ..method import method
from ..methods import resolve_method
from ..trimming import trimmed_count
from .aggregation import TrimmedMean, trim
from .robust import Robust, Tie, check_method

__all__ = ["Tie", "Trimmed", "trim", "trim_all", "trimmed_count"]


@kernel
def trim_all(fraction, start, peer, weight, said, copy):
    """Trim what every agent of a world has heard."""
    for i in range(start.shape[0] - 1):
        a, b = start[i], start[i + 1]
        trim(fraction, peer[a:b], weight[a:b], said[a:b], copy[a:b])


@method
class Trimmed(Robust):
    """A method whose agents leave out the extremes of what their neighbours send, coordinate by coordinate.

    For agents whose neighbours may lie, or be broken. Of d neighbours, the ``floor(fraction d)`` smallest and as many
    of the largest values of every coordinate are left out, and the neighbours pull towards the weighted mean of the
    others with the strength of all of them. As long as no more of an agent's neighbours lie than are left out at one
    end, what it is pulled towards lies between values that honest neighbours have sent. An agent with fewer than
    ``1 / fraction`` neighbours trusts them all.

    It works with every objective and graph, ``ct.Learned(ct.Trimmed(method))`` included, and costs no privacy: what was
    received is no secret. It no longer minimises the objective: honest extremes are left out, too.

    Parameters
    ----------
    method : CoordinateDescent, ModelPropagation, DJAM, or Private of one of the first two; or its name
    fraction : float
        Part of the neighbours that is left out at either end, in [0, 0.5).

    Examples
    --------
    Four agents agree on about 1, and a fifth, which learns nothing, says 1000:

    >>> import coterie as ct
    >>> models, sure = [[0.9], [1.0], [1.1], [1.2], [1000.0]], [0.1, 0.1, 0.1, 0.1, 1e6]
    >>> problem = ct.Problem.propagation(models, ct.graphs.complete(5), alpha=0.9, confidence=sure)
    >>> ct.simulate(problem, "cd", wakes=2000, seed=0).theta.round(1).ravel().tolist()
    [957.5, 957.5, 957.5, 957.5, 1000.0]
    >>> ct.simulate(problem, ct.Trimmed("cd", 0.25), wakes=2000, seed=0).theta.round(1).ravel().tolist()
    [1.1, 1.1, 1.1, 1.1, 1000.0]
    """

    def __new__(cls, method, fraction=0.2):
        """Refuse bad parameters when the method is made."""
        method = resolve_method(method)
        check_method(method, "trim")
        return Robust.__new__(cls, method, TrimmedMean(fraction))

    def __getnewargs__(self):
        """What makes another one."""
        return self.method, self.fraction

    def __repr__(self):
        return f"Trimmed({self.method!r}, fraction={self.fraction:g})"

    @property
    def fraction(self):
        """Part of the neighbours that is left out at either end."""
        return self.rule.fraction
