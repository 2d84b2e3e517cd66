"""The rule by which agents learn their edges (DADA): Zantedeschi, Bellet, Tommasi (2020), Section 4."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from ..._checks import integer, within
from ..compile import noinline
from ..rules import Or, Word, checked, rule
from .graph_objective import block, check_parameter, local_lipschitz, paper_lipschitz, proximal_step, regularizer

#: Values of ``step`` on a block: its exact minimum, or a gradient step with one of two curvature bounds.
STEPS = ("exact", "local", "paper")
#: Stored in place of None: ``mu`` equal to that of the smoothness term; ``max_edges`` without limit.
AUTO, ANY = 0.0, 0
#: Largest weight that an honest agent uses; with larger ones, a degree might not be finite.
MAX_WEIGHT = 1e100


@checked(
    mu=Or(None, check_parameter, AUTO),
    lam=check_parameter,
    delta=check_parameter,
    kappa=integer,
    step=Word(*STEPS),
    max_edges=Or(None, integer, ANY),
    max_weight=partial(within, low=0, high=MAX_WEIGHT, ends="(]"),
)
@rule
class GraphRule(NamedTuple):
    """Block coordinate descent on the weights of the graph, DADA Section 4.

    Minimises ``h(w) = Q(Theta, w) + mu ( lam |w|^2 - sum_k log(d_k + delta) )`` over w >= 0 for fixed models: edges
    between agents with similar models and small losses get weight.

    Parameters
    ----------
    mu : float, optional
        mu_2, the weight of the regulariser. Default: mu_1, that of the problem's smoothness term.
    lam : float
        Larger values give more and lighter edges.
    delta : float
        Smooths the logarithm for agents without edges. With 0.1 or more, agents stay isolated.
    kappa : int
        Number of random peers that an agent asks at a time, the size of a block.
    step : "exact", "local" or "paper"
        "exact" minimises over the block; "local" and "paper" take one gradient step, with a curvature bound from the
        degrees, or with the bound of the paper's Theorem 2, which leads to very small steps.
    max_edges : int, optional
        Largest number of neighbours of an agent, those with the most similar models (Remark 1). Default: no limit.
    max_weight : float
        Largest weight of an edge: an agent neither sets a larger weight nor accepts one from a peer, so that no peer
        can gain influence by a request. The default is practically no limit.

    Examples
    --------
    >>> GraphRule(lam=0.1)
    GraphRule(lam=0.1, delta=0.01, kappa=5)
    >>> GraphRule(delta=0.0)
    Traceback (most recent call last):
    ...
    coterie.errors.ParameterError: ...
    """

    mu: Any = None
    lam: float = 1.0
    delta: float = 0.01
    kappa: int = 5
    step: Any = "exact"
    max_edges: Any = None
    max_weight: float = MAX_WEIGHT

    def __repr__(self):
        mu, lam, delta, kappa, step, max_edges, max_weight = self.__getnewargs__()
        parts = [f"mu={mu:g}"] if mu is not None else []
        parts += [f"lam={lam:g}", f"delta={delta:g}", f"kappa={kappa}"]
        parts += [f"step={step!r}"] if step != "exact" else []
        parts += [f"max_edges={max_edges}"] if max_edges else []
        return f"GraphRule({', '.join(parts + ([f'max_weight={max_weight:g}'] if max_weight < MAX_WEIGHT else []))})"

    @property
    def limited(self):
        """Return whether the number or the weights of an agent's edges are limited, beyond the objective h."""
        return self.max_edges != ANY or self.max_weight < MAX_WEIGHT

    def regularizer(self, problem):
        """Return the term that the rule adds to the objective of a problem, as a function of its graph.

        Examples
        --------
        >>> import numpy as np
        >>> import coterie as ct
        >>> problem = ct.Problem.propagation([[0.0], [2.0]], ct.graphs.complete(2))
        >>> round(GraphRule(lam=2.0, delta=1e-9).regularizer(problem), 6)
        2.0
        """
        mu = 2.0 * problem.smooth if self.mu == AUTO else self.mu
        return regularizer(problem.graph.edges()[2], problem.graph.degrees, mu, self.lam, self.delta)


@noinline
def better(rule, smooth, weight, cost, others, own, out):
    """Compute new weights of a block."""
    mu, kappa = 2.0 * smooth if rule.mu == AUTO else rule.mu, cost.shape[0]
    if rule.step == 0:
        block(cost, others, own, mu, rule.lam, rule.delta, out)
    else:
        if rule.step == 1:
            bound = local_lipschitz(others, own, mu, rule.lam, rule.delta, kappa)
        else:
            bound = paper_lipschitz(kappa, mu, rule.lam, rule.delta)
        proximal_step(weight, cost, others, own, mu, rule.lam, rule.delta, bound, out)
    for k in range(kappa):  # weights that peers would refuse are not proposed
        out[k] = min(out[k], rule.max_weight)
