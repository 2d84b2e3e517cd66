"""``Private(method, ...)``: a method whose messages are differentially private."""

from __future__ import annotations

from typing import Any

from .._checks import integer
from ..accounting.plans import make_plan
from ..core.method import Method
from ..core.methods import METHODS, CoordinateDescent, FrankWolfeBoosting, GossipPooling, ModelPropagation
from ..core.private.boosting import PrivateBoosting
from ..core.private.descent import PrivateDescent
from ..core.private.pooling import PrivatePooling
from ..core.private.propagation import PrivatePropagation
from ..core.private.terms import make_terms
from ..core.wrap.learned import Learned
from ..core.wrap.robust import Robust
from ..errors import MismatchError, ParameterError

#: Private form of each method, and its default number of releases.
FORMS: dict[type, tuple[Any, int]] = {
    CoordinateDescent: (PrivateDescent, 5),
    ModelPropagation: (PrivatePropagation, 1),
    FrankWolfeBoosting: (PrivateBoosting, 5),
    GossipPooling: (PrivatePooling, 1),
}
#: Forms with a single release; everything after the release is post-processing.
ONE_RELEASE = {PrivatePropagation: "propagation", PrivatePooling: "pooling"}


def Private(  # noqa: N802 - named like the classes of methods
    method: Any,
    epsilon: float = 1.0,
    delta: float = 1e-5,
    mechanism: str | None = None,
    clip: float = 1.0,
    wakes_per_agent: int | None = None,
    allocation: Any = "equal",
    final: str | None = "local",
    *,
    accountant: str | None = None,
    rate: float = 0.9,
    row_norm: float = 1.0,
    max_rows: int | None = None,
    loss_fraction: float = 0.0,
) -> Any:
    """Return a method whose messages are (epsilon, delta)-differentially private.

    Two datasets of an agent are neighbouring if one example differs; the number of examples is public. The guarantee
    holds for each agent, for all messages that it sends in the whole run, and for all messages of its neighbours.

    Parameters
    ----------
    method : CoordinateDescent, ModelPropagation, FrankWolfeBoosting, GossipPooling, or Learned or Trimmed of the first
        three
        Coordinate descent publishes a noisy step at each of its first ``wakes_per_agent`` wakes. Propagation publishes
        one noisy model, and then runs for any number of wakes, about 20 for each agent. Boosting chooses its base
        predictors by the exponential mechanism. Pooling publishes one noisy model, too; agents learn the distribution
        of these models by gossip, in about 30 wakes each, and weigh it against their own rows. A learned graph only
        compares published values.
    epsilon, delta : float
        Budget of each agent: epsilon > 0, delta in (0, 1).
    mechanism : "gaussian" or "laplace", optional
        Distribution of the noise. Default: "gaussian", with exact accounting and less noise. Boosting only has
        "exponential".
    clip : float
        Norm to which gradients of examples are clipped: L2 for Gaussian noise, L1 for Laplace noise.
    wakes_per_agent : int, optional
        Number of releases that share the budget. Default: 5; propagation and pooling have one.
    allocation : "equal", "decreasing", "as-printed" or sequence of numbers
        Shares of the releases in the budget: see :func:`coterie.privacy.allocation_weights`.
    final : "local" or None
        With "local", an agent trains once more on its own data at the end, near the models of its neighbours, for its
        own use: this final model is never sent. With None, an agent's model is the one that it has published.
    accountant : "bound" or "pld", optional
        For Laplace noise: the corrected bound of the paper, or numerical accounting, which needs the extra ``privacy``.
    rate : float
        For ``allocation="decreasing"``: factor by which one wake of each agent reduces the distance to the optimum.
    row_norm : float
        A public bound on the norm of a row of features, which determines the step sizes. Longer rows reduce accuracy,
        not privacy.
    max_rows : int, optional
        For propagation: a public number of rows from which on a released model has full confidence. Default: the
        largest number of rows of the agents in this process; on a peer, its own number of rows.
    loss_fraction : float
        Fraction of the budget spent on releasing the agent's loss, for learned graphs that use losses.

    Returns
    -------
    rule
        A method for :func:`coterie.simulate`, :class:`coterie.Learned` and peers, with an attribute ``plan``.

    Examples
    --------
    >>> import numpy as np
    >>> import coterie as ct
    >>> task = ct.datasets.linear_classification(n=60, p=20, seed=0)
    >>> problem = ct.Problem.personalized(task.train, task.graph)
    >>> private = ct.Private(ct.ModelPropagation(), epsilon=1.0, delta=np.exp(-5))
    >>> private
    Private(ModelPropagation(), epsilon=1, delta=0.00673795, mechanism='gaussian', clip=1, wakes_per_agent=1, ...)
    >>> run = ct.simulate(problem, private, wakes=1200, seed=0)
    >>> bool(task.accuracy(run.theta).mean() > task.accuracy(problem.local()).mean())
    True
    """
    method = _resolved(method)
    options: dict[str, Any] = dict(locals())
    del options["method"]
    if isinstance(method, Learned):
        return Learned(Private(method.method, **options), method.rule, method.every, method.sampling)
    if isinstance(method, Robust):
        return type(method)(Private(method.method, **options), *method.__getnewargs__()[1:])
    if type(method) not in FORMS:
        names = ", ".join(f"ct.{kind.__name__}()" for kind in FORMS)
        raise MismatchError(
            f"there is no private form of {method!r}, but of {names}, and of ct.Learned, ct.robust.Trimmed and "
            "ct.Robust of them"
        )
    form, steps = FORMS[type(method)]
    if wakes_per_agent is not None:
        steps = integer("wakes_per_agent", wakes_per_agent)
        if form in ONE_RELEASE and steps != 1:
            raise ParameterError(
                f"wakes_per_agent={steps}: {ONE_RELEASE[form]} makes one release, however often agents wake: "
                "leave wakes_per_agent out"
            )
    exponential = form is PrivateBoosting
    choices = ("exponential",) if exponential else ("gaussian", "laplace")
    mechanism = choices[0] if mechanism is None else mechanism
    if mechanism not in choices:
        raise ParameterError(f"mechanism={mechanism!r}: {method!r} has {' or '.join(map(repr, choices))}")
    if loss_fraction and form in (PrivateBoosting, PrivatePooling):
        name = "boosting" if exponential else "pooling"
        raise ParameterError(f"loss_fraction={loss_fraction!r}: private {name} tells nothing of an agent's loss")
    plan = make_plan(epsilon, delta, steps, mechanism, accountant, allocation, rate)
    return form(method, make_terms(plan, clip, row_norm, max_rows, loss_fraction, final))


def _resolved(method: Any) -> Any:
    if isinstance(method, str) and method in METHODS:
        return METHODS[method]
    if isinstance(method, Method):
        return method
    from ..problem.baselines import resolve_method  # not above: imports pandas, which a private peer does not need

    return resolve_method(method)
