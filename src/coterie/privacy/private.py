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

#: Which methods there is a private form of, and how many releases it makes unless told otherwise.
FORMS: dict[type, tuple[Any, int]] = {
    CoordinateDescent: (PrivateDescent, 5),
    ModelPropagation: (PrivatePropagation, 1),
    FrankWolfeBoosting: (PrivateBoosting, 5),
    GossipPooling: (PrivatePooling, 1),
}
#: Forms that make one release, after which everything is free.
ONCE = {PrivatePropagation: "propagation", PrivatePooling: "pooling"}


def Private(  # noqa: N802 - it makes a method, as the names of methods do
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
    """A method whose messages are (epsilon, delta)-differentially private, whoever reads them all.

    Two datasets of an agent are neighbours if one example differs: how many there are is public. The claim holds for
    each agent, for everything it sends in the whole run, whatever its neighbours send to it.

    Parameters
    ----------
    method : CoordinateDescent, ModelPropagation, FrankWolfeBoosting, GossipPooling, or Learned or Trimmed of the first
        three
        Coordinate descent publishes a noisy step at each of its first ``wakes_per_agent`` wakes. Propagation publishes
        one noisy model, and then goes on for as long as one likes: 20 wakes of each agent or so. Boosting chooses its
        base predictors by the exponential mechanism. Pooling publishes one noisy model, too; agents learn by gossip
        what the population of these looks like, 30 wakes of each or so, and weigh it against their own rows. Under a
        learned graph, only what is published anyway is compared.
    epsilon, delta : float
        The budget of each agent, > 0, and in (0, 1).
    mechanism : "gaussian" or "laplace", optional
        Noise, Gaussian by default: exact accounting, and less of it. Boosting has "exponential" alone.
    clip : float
        The gradient of an example is shortened to this norm: L2 for Gaussian noise, L1 for Laplace.
    wakes_per_agent : int, optional
        How many releases the budget is split for. Default: 5; propagation and pooling have one.
    allocation : "equal", "decreasing", "as-printed" or sequence of numbers
        How it is split: see :func:`coterie.privacy.allocation_weights`.
    final : "local" or None
        When all is said, an agent trains once more on its own data, near what it has heard from its neighbours, for
        its own use: nothing of that is ever sent. With None, its model is what it has published.
    accountant : "bound" or "pld", optional
        For Laplace noise: the paper's bound, corrected; or numerical accounting, which needs the extra ``privacy``.
    rate : float
        For ``allocation="decreasing"``: how much nearer to the optimum one wake of each agent brings the models.
    row_norm : float
        A public bound on the norm of a row of features: sets the steps. Longer rows cost accuracy, not privacy.
    max_rows : int, optional
        A public number of rows that makes a released model fully reliable, for propagation. Default: the most that any
        agent of this process has: on a peer, its own.
    loss_fraction : float
        Part of the budget that goes to the agent's loss, for a learned graph that takes it into account.

    Returns
    -------
    rule
        A method for :func:`coterie.simulate`, :class:`coterie.Learned` and peers, with its ``plan``.

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
            f"there is no private form of {method!r}, but of {names}, and of ct.Learned, ct.robust.Trimmed and ct.Robust "
            "of them"
        )
    form, steps = FORMS[type(method)]
    if wakes_per_agent is not None:
        steps = integer("wakes_per_agent", wakes_per_agent)
        if form in ONCE and steps != 1:
            raise ParameterError(f"wakes_per_agent={steps}: {ONCE[form]} makes one release, and all else is free")
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
    from ..problem.baselines import resolve_method  # with tables, which a private peer does not need

    return resolve_method(method)
