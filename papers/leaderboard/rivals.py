"""What people use for grouped data, in the form that the leaderboard asks for: fit and predict with agents.

Rows are dense, with columns of about unit variance; classes are -1 and 1. statsmodels, GPBoost and LightGBM are
imported when they are needed, and come with ``pip install 'coterie[bench]'``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Self

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge

from coterie import graphs
from coterie.core.methods import GossipPooling
from coterie.data import AgentData
from coterie.engines.simulator import simulate
from coterie.problem import Problem

#: Random slopes of so many columns, at most; of more, only intercepts are random. Correlated ones take longer.
MOST_SLOPES, MOST_CORRELATED = 50, 20
#: Of GPBoost, which advises them where the line search of its optimiser fails. With classes they take minutes.
RESTARTS = 5
#: Edges of an agent that pools by gossip, if there are so many others.
DEGREE = 6


def installed(package: str) -> str:
    """The version of a package, or that it is not there."""
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"{package} is not installed: pip install 'coterie[bench]'"


class Rival(BaseEstimator):
    """Base class of rivals. Labels are classes, -1 and 1, or numbers."""

    classes: bool
    model_: Callable[[np.ndarray, np.ndarray], np.ndarray]
    members_: pd.Index

    def __init__(self, classes: bool = True):
        self.classes = classes

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.estimator_type = "classifier" if self.classes else "regressor"
        return tags

    def fit(self, X: np.ndarray, y: np.ndarray, agents: Any) -> Self:
        """Learn from rows."""
        codes, members = pd.factorize(np.asarray(agents))
        self.members_ = pd.Index(members)
        self.model_ = self._learned(X, y, codes, len(members))
        return self

    def predict(self, X: np.ndarray, agents: Any) -> np.ndarray:
        """Numbers or classes of rows; their agents have been met."""
        found = self.model_(X, self.members_.get_indexer(np.asarray(agents)))
        return np.where(found > 0.0, 1.0, -1.0) if self.classes else found

    def _learned(self, X: np.ndarray, y: np.ndarray, codes: np.ndarray, n: int) -> Any:
        """What gives a number for each row, above 0 for the class 1."""
        raise NotImplementedError


class OneHot(Rival):
    """Pooled regression, ridge or logistic, with an indicator for each agent; the ridge is on both."""

    def __init__(self, classes: bool = True, ridge: float = 1.0):
        super().__init__(classes)
        self.ridge = ridge

    def _learned(self, X: np.ndarray, y: np.ndarray, codes: np.ndarray, n: int) -> Any:
        def design(X: np.ndarray, codes: np.ndarray) -> np.ndarray:
            return np.hstack([X, np.eye(n)[codes]])

        if not self.classes:
            line = Ridge(self.ridge).fit(design(X, codes), y)
            return lambda X, codes: line.predict(design(X, codes))
        if len(np.unique(y)) == 1:
            return lambda X, codes: np.full(len(codes), y[0])
        curve = LogisticRegression(C=1.0 / self.ridge, max_iter=2000).fit(design(X, codes), y)
        return lambda X, codes: curve.decision_function(design(X, codes))


class Mixed(Rival):
    """A mixed model: fixed effects of all columns, a random intercept and random slopes of those columns that vary
    inside agents, if these are not many; independent ("gpboost") or correlated, of numbers only ("statsmodels").
    """

    def __init__(self, classes: bool = True, package: str = "gpboost"):
        super().__init__(classes)
        self.package = package

    def _learned(self, X: np.ndarray, y: np.ndarray, codes: np.ndarray, n: int) -> Any:
        correlated = self.package == "statsmodels"
        grouped = pd.DataFrame(X).groupby(codes)
        columns = np.flatnonzero((grouped.max() - grouped.min()).max() > 1e-9)
        columns = columns[: 0 if len(columns) > (MOST_CORRELATED if correlated else MOST_SLOPES) else None]
        self.chosen_ = f"{len(columns)} random slopes" if len(columns) else "random intercepts"
        span = _span(X)  # where columns depend on each other, as directions of which all have a share
        center, scale = (0.0, 1.0) if self.classes else (y.mean(), y.std())

        def fixed(X: np.ndarray) -> np.ndarray:
            return np.column_stack([np.ones(len(X)), X @ span])

        if correlated:
            model = _mixedlm(X, (y - center) / scale, codes, columns, fixed, n)
        else:
            model = _gpboost(X, y if self.classes else (y - center) / scale, codes, columns, fixed, self.classes)
        return lambda X, codes: center + scale * model(X, codes)


def _span(X: np.ndarray) -> np.ndarray:
    """Directions in which centred rows vary, as columns."""
    _, sizes, directions = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)
    return directions[sizes > 1e-7 * sizes.max()].T


def _mixedlm(X: np.ndarray, y: np.ndarray, codes: np.ndarray, columns: np.ndarray, fixed: Any, n: int) -> Any:
    from statsmodels.regression.mixed_linear_model import MixedLM

    def random(X: np.ndarray) -> np.ndarray:
        return np.column_stack([np.ones(len(X)), X[:, columns]])

    with warnings.catch_warnings():  # after the import, which has filters of its own
        warnings.simplefilter("ignore")
        found = MixedLM(y, fixed(X), groups=codes, exog_re=random(X)).fit()
    if not found.converged:
        warnings.warn("the likelihood of the mixed model is not at its maximum", ConvergenceWarning, stacklevel=4)
    personal = np.stack([np.asarray(found.random_effects[k]) for k in range(n)])
    return lambda X, codes: fixed(X) @ found.fe_params + np.sum(random(X) * personal[codes], axis=1)


def _gpboost(X: np.ndarray, y: np.ndarray, codes: np.ndarray, columns: np.ndarray, fixed: Any, classes: bool) -> Any:
    import gpboost

    slopes = len(columns) > 0
    more = {"group_rand_coef_data": X[:, columns], "ind_effect_group_rand_coef": [1] * len(columns)} if slopes else {}
    likelihood = "bernoulli_logit" if classes else "gaussian"
    found = gpboost.GPModel(group_data=codes, likelihood=likelihood, num_parallel_threads=1, **more)
    restarts = {} if classes else {"max_num_restarts_lbfgs": RESTARTS}
    found.fit(y=(y > 0).astype(float) if classes else y, X=fixed(X), params=restarts)

    def model(X: np.ndarray, codes: np.ndarray) -> np.ndarray:
        more = {"group_rand_coef_data_pred": X[:, columns]} if slopes else {}
        mean = found.predict(group_data_pred=codes, X_pred=fixed(X), **more)["mu"]
        return mean - 0.5 if classes else mean

    return model


class Trees(Rival):
    """LightGBM: trees for each agent, or for all with the agent as a category; `leaf` is the least rows of a leaf."""

    def __init__(self, classes: bool = True, each: bool = False, rounds: int = 100, leaf: int = 20):
        super().__init__(classes)
        self.each = each
        self.rounds = rounds
        self.leaf = leaf

    def _learned(self, X: np.ndarray, y: np.ndarray, codes: np.ndarray, n: int) -> Any:
        if not self.each:
            model = self._trees(np.column_stack([X, codes]), y, [X.shape[1]])
            return lambda X, codes: model(np.column_stack([X, codes]))
        models = [self._trees(X[codes == k], y[codes == k], []) for k in range(n)]

        def predict(X: np.ndarray, codes: np.ndarray) -> np.ndarray:
            found = np.empty(len(codes))
            for k in np.unique(codes):
                found[codes == k] = models[k](X[codes == k])
            return found

        return predict

    def _trees(self, X: np.ndarray, y: np.ndarray, categories: list[int]) -> Any:
        import lightgbm

        if len(np.unique(y)) == 1:
            return lambda X: np.full(len(X), y[0])
        settings = {
            "objective": "binary" if self.classes else "regression",
            "min_data_in_leaf": self.leaf,
            "verbosity": -1,
            "num_threads": 1,
            "seed": 0,
        }
        rows = lightgbm.Dataset(X, (y > 0) * 1.0 if self.classes else y, categorical_feature=categories)
        found = lightgbm.train(settings, rows, self.rounds)
        return lambda X: found.predict(X, raw_score=self.classes)


class Gossip(Rival):
    """Partial pooling without a coordinator: linear models and what is known of the population, by pairwise gossip.

    The result does not depend on the graph, if it is connected, so the graph is random. An agent takes part in twice as
    many exchanges as it has wakes: exchanges that it begins, and exchanges begun by its neighbours.
    """

    def __init__(self, classes: bool = True, wakes: int = 100):
        super().__init__(classes)
        self.wakes = wakes

    def _learned(self, X: np.ndarray, y: np.ndarray, codes: np.ndarray, n: int) -> Any:
        def design(X: np.ndarray) -> np.ndarray:
            return np.column_stack([X, np.ones(len(X))])

        edges = graphs.random_regular(n, DEGREE, seed=0) if n > DEGREE + 1 else graphs.complete(n)
        data = AgentData(design(X), y, agents=codes, members=range(n))
        problem = Problem.separate(data, edges, loss="logistic" if self.classes else "squared")
        self.run_ = simulate(problem, GossipPooling(), wakes=self.wakes * n, seed=0)
        theta = self.run_.theta
        return lambda X, codes: np.sum(design(X) * theta[codes], axis=1)
