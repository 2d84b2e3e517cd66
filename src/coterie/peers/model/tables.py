"""Turning a charter and a table of rows into a problem, a method, and the work of a peer.

Only this module turns charters into objects of the library, so a peer and the exact optimum to which it is compared
agree. Pooling needs neither pandas nor SciPy here, so commands and peers start fast.
"""

from __future__ import annotations

import hashlib
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..._files import Where
from ...core.arrays import TIED
from ...core.linear import DenseRows
from ...core.losses import Location, Squared
from ...core.messages import lengths_of, longest
from ...core.methods import check_fit
from ...core.training import local_of, new_job, train_one
from ...core.wrap.learned import Learned
from ...errors import CoterieError, DataError, ParameterError
from ..group.charter import Charter, charter_in
from ..group.networks import model_of
from ..wire.packet import OVERHEAD_BYTES
from .cells import read_cells, spelt
from .encoding import EncodedRows, rows_of_cells
from .own_model import fit_own_rows
from .work import BOOSTING, EMPTY, Work, arrays_of_one, longest_message, loss_of, make_part, method_of, write_work

if TYPE_CHECKING:
    from ...data import AgentData
    from ...data.dictionaries import Stumps
    from ...graphs import Graph
    from ...problem import Problem

#: Objectives in which an agent's loss is weighted by its number of rows.
CONFIDENT = ("personalized", "propagation", "boosting")
#: Default of the rows kept aside: their share, the minimal number of rows, and the maximal number kept aside.
DEFAULT_HOLDOUT, MIN_HOLDOUT_ROWS, MAX_HOLDOUT_ROWS = 0.2, 30, 200
#: Number of parameters above which the covariance of the model trained alone is not kept.
MAX_COVARIANCE_PARAMETERS = 1000
#: Number of wakes for which a nonlinear model is trained alone.
TRAINED_WAKES = 200


def check_charter(charter: Charter) -> None:
    """Refuse a charter whose parts do not go together, before anybody has accepted it."""
    method = method_of(charter)
    if charter.network:
        if longest_message(charter) > charter.message_bytes:
            raise ParameterError(
                f"message_bytes={charter.message_bytes}: a message of this network takes up to "
                f"{longest_message(charter)} bytes"
            )
        return
    problem = _pair(charter) if charter.objective == "boosting" else _sketch(charter)
    try:
        check_fit(_within(method), problem)
    except AttributeError:  # a method that needs more of a problem than the sketch has
        problem = _pair(charter)
        check_fit(_within(method), problem)
    needed = 8 * longest(lengths_of(method.messages, problem.p)) + OVERHEAD_BYTES
    if needed > charter.message_bytes:
        raise ParameterError(
            f"message_bytes={charter.message_bytes}: a message of {method!r} takes up to {needed} bytes"
        )


def _pair(charter: Charter) -> Problem:
    """Return a problem of two agents."""
    from ...data import AgentData
    from ...graphs import complete

    pair = AgentData(np.ones((4, charter.width)), np.array([1.0, -1.0, 1.0, -1.0]), agents=[0, 0, 1, 1])
    return problem_of(charter, pair, complete(2))


def _sketch(charter: Charter) -> Any:
    """Return a stand-in for the problem of two agents with the fields that most methods check, for a fast start."""
    return SimpleNamespace(
        name=charter.objective,
        loss=Location(Squared()) if charter.objective == "propagation" else loss_of(charter),
        p=charter.width,
        is_linear=True,
        roles=np.full(charter.width, TIED, np.int8),
        radius=np.inf,
        outputs=1,
        base=None,
        graph=SimpleNamespace(components=np.zeros(2, int), isolated=np.zeros(2, bool), directed=False),
        ridge=np.full(2, 1.0 if charter.ridge == "1/m" else charter.ridge),
        importance=np.ones(2),
        members=(0, 1),
    )


def _within(method: Any) -> Any:
    """Return the method without the learning of edges, which needs more members than there may be yet."""
    return method.method if isinstance(method, Learned) else method


def problem_of(charter: Charter, data: AgentData, graph: Graph, confident: bool = True, model: Any = None) -> Problem:
    """Return the charter's problem for some members. With `confident`, losses are weighted by confidence.

    `model` is the group's, if members bring it.
    """
    from ...graphs import empty
    from ...problem import Problem
    from ...problem.confidence import confidences
    from ...problem.coupling import mu_of

    c = None
    if confident and charter.confidence != "none":
        largest = charter.max_rows if charter.confidence == "public" else int(data.sizes.max(initial=1))
        c = confidences(data.sizes, largest)
    if charter.objective == "pooling":  # pooling minimises none of these problems, but needs rows and loss
        return Problem.separate(data, graph, loss_of(charter), charter.ridge)
    if charter.network:
        network = charter.network
        return Problem.differentiable(
            data,
            graph,
            model_of(charter) if model is None else model,
            coupling=charter.coupling,
            ridge=charter.ridge,
            confidence=c,
            personal=network.personal,
            shared=network.shared,
            tied=network.tied,
        )
    loss, mu = loss_of(charter), mu_of(charter.coupling, charter.objective)
    match charter.objective:
        case "personalized":
            return Problem.personalized(data, graph, loss, mu, charter.ridge, c)
        case "collaborative":
            return Problem.collaborative(data, graph, loss, mu, charter.ridge)
        case "separate":
            return Problem.separate(data, graph, loss, charter.ridge)
        case "propagation":
            alone = Problem.personalized(data, empty(data.n), loss, mu, charter.ridge, None)
            return Problem.propagation(alone.local(), graph, alpha=1.0 / (1.0 + mu), confidence=c)
        case "boosting":
            beta: Any = charter.settings.get("beta", BOOSTING["beta"])
            return Problem.boosting(data, graph, dictionary_of(charter), mu, beta, c, loss)
    raise AssertionError(charter.objective)  # pragma: no cover - the charter's type


def dictionary_of(charter: Charter) -> Stumps:
    """Return the public base predictors of boosting: decision stumps over a public range."""
    from ...data.dictionaries import Stumps

    given = BOOSTING | charter.settings
    made: Stumps = make_part("settings", Stumps, {"low": given["low"], "high": given["high"]}, given["stumps"])
    return made


def read_rows(charter: Charter, table: Where | Any) -> EncodedRows:
    """Read the rows of a file or a pandas frame as the charter says."""
    where = "the table" if hasattr(table, "columns") else str(table)
    return rows_of_cells(charter, read_cells(table), where)


def rows_of(charter: Charter, table: Where | Any) -> tuple[np.ndarray, np.ndarray]:
    """Return features and labels of a table as the charter says."""
    rows = read_rows(charter, table)
    return rows.X, rows.y


def no_rows(charter: Charter) -> EncodedRows:
    """Return the rows of a peer without rows, which the population's model serves."""
    fill = [np.nan] * len(charter.features) if charter.columns is None else charter.columns.fills
    if charter.columns is None and charter.center is not None:
        fill = list(charter.center)
    return EncodedRows(np.empty((0, charter.width)), np.empty(0), np.array(fill, float), [])


def kept_aside(X: np.ndarray, y: np.ndarray, holdout: float | None) -> np.ndarray:
    """Return which rows are kept aside for scoring: a share `holdout`, or by default as many as can be spared.

    A hash of each row decides, so that later rows change the choice little.
    """
    m = len(X)
    share = (
        (min(DEFAULT_HOLDOUT, MAX_HOLDOUT_ROWS / m) if m >= MIN_HOLDOUT_ROWS else 0.0) if holdout is None else holdout
    )
    rows = np.column_stack([X, y]) + 0.0  # -0.0 is 0.0
    digest = [hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in np.ascontiguousarray(rows)]
    aside = np.zeros(m, bool)
    aside[sorted(range(m), key=digest.__getitem__)[: int(share * m + 1e-9)]] = True
    return aside


def work_of(charter: Charter, X: np.ndarray, y: np.ndarray, holdout: float | None = 0.0, model: Any = None) -> Work:
    """Return the work of a peer with these rows. A share `holdout` is kept aside; None: the default number.

    `model` is the group's, if members bring it.
    """
    aside = kept_aside(X, y, holdout)
    seen = aside if aside.any() else ~aside
    if charter.network:
        model = model_of(charter) if model is None else model
        work = _network_work(charter, X[~aside], y[~aside], X[seen], model)
    else:
        make = _pooling_work if charter.objective == "pooling" else _graph_work
        work = make(charter, X[~aside], y[~aside], X[seen])
    return work._replace(seen_labels=y[seen], aside=bool(aside.any()))


def _floats(values: Any) -> np.ndarray:
    return np.ascontiguousarray(values, float)


def _pooling_work(charter: Charter, X: np.ndarray, y: np.ndarray, seen: np.ndarray) -> Work:
    """Return the work for pooling, with rows and a loss; the model trained alone is in the peer's own units."""
    check_fit(method_of(charter), _sketch(charter))
    loss, (m, p) = loss_of(charter), X.shape
    found = fit_own_rows(
        loss, X, y, charter.intercept, standard=charter.design is not None or charter.scale is not None
    )
    local = np.zeros(p) if found is None else found.theta
    if not np.isfinite(local).all():
        raise DataError("the rows hold numbers of such a size that no model of them is finite: scale them")
    return Work(
        loss=loss,
        features=_floats(X),
        labels=_floats(y),
        size=m,
        row_weight=1.0 / max(m, 1),
        curvature=float(loss.smoothness * np.sum(X * X) / max(m, 1)),
        theta=np.zeros(p) if charter.privacy is not None else local.copy(),
        local=local,
        seen=_floats(seen),
        spread=EMPTY if found is None or p > MAX_COVARIANCE_PARAMETERS else found.covariance,
        noise=1.0 if found is None else found.noise,
    )


def _part_of(problem: Problem, size: int, features: np.ndarray, theta: np.ndarray, seen: np.ndarray) -> Work:
    """Return the work for the problem of one agent, without confidence."""
    return Work(
        loss=problem.loss,
        features=_floats(features),
        labels=_floats(problem.labels),
        size=size,
        row_weight=float(problem.row_weight[0]),
        ridge=float(problem.ridge[0]),
        weight=float(problem.loss_weight[0]),
        smooth=problem.smooth,
        scaled=bool(problem.scaled),
        radius=problem.radius,
        outputs=problem.outputs,
        theta=theta.copy(),
        local=theta,
        seen=_floats(seen),
    )


def _problem_of_one(charter: Charter, X: np.ndarray, y: np.ndarray, model: Any = None) -> Problem:
    from ...data import AgentData
    from ...graphs import empty

    data = AgentData(X, y, agents=np.zeros(len(X), int), members=[0])
    problem = problem_of(charter, data, empty(1), confident=False, model=model)
    check_fit(_within(method_of(charter)), problem)
    return problem


def _graph_work(charter: Charter, X: np.ndarray, y: np.ndarray, seen: np.ndarray) -> Work:
    """Return the work for an objective with a graph."""
    from scipy import sparse

    problem = _problem_of_one(charter, X, y)
    rows, local = problem.rows, problem.local()[0]
    if not np.linalg.norm(local) <= charter.radius:
        raise DataError(
            f"the model of these rows alone has the norm {np.linalg.norm(local):.4g}, and in this run it may be "
            f"at most {charter.radius:g}: scale features or target, or agree on a larger --radius"
        )
    features = rows.values
    if not isinstance(rows, DenseRows):
        features = sparse.csr_array((rows.values, rows.column, rows.start), (len(rows.start) - 1, problem.p)).toarray()
    shown = seen if problem.base is None else problem.base.transform(seen)
    work = _part_of(problem, len(X), features, np.array(local), shown)._replace(
        confident=charter.objective in CONFIDENT and charter.confidence != "none",
        curvature=float(problem.local_lipschitz[0]),
    )
    public = charter.privacy is not None or charter.objective == "boosting"
    return work._replace(theta=np.zeros(problem.p)) if public else work


def _network_work(charter: Charter, X: np.ndarray, y: np.ndarray, seen: np.ndarray, model: Any) -> Work:
    """Return the work for a nonlinear model. All agents begin from the same initial parameters."""
    labels = y if charter.labels is None else (y > 0.0).astype(float)  # models number their classes from 0
    problem = _problem_of_one(charter, X, labels, model)
    theta = np.array(model.initial(charter.network.seed if charter.network else 0), float)
    work = _part_of(problem, len(X), X, theta, seen)._replace(
        loss=loss_of(charter),
        labels=_floats(labels),
        confident=charter.confidence != "none",
        roles=np.array(problem.roles),
        model=model,
    )
    local = trained_alone(work, local_of(method_of(charter)))
    if not np.isfinite(local).all():
        raise DataError(
            "trained on these rows alone, the model is not finite after a while: agree on a smaller rate "
            "(--set rate=...), or on --center and --scale of the features"
        )
    return work._replace(local=local)


def trained_alone(work: Work, local: Any) -> np.ndarray:
    """Train a model on the agent's own rows for :data:`TRAINED_WAKES` wakes, from the common initial parameters."""
    arrays = arrays_of_one(work, 0, {}, 1, max(work.size, 1), batch=local.batch)
    job, rng, scratch = new_job(local, work.theta[None, :]), np.random.default_rng(0), np.zeros(work.p)
    for _ in range(TRAINED_WAKES):
        train_one(local, arrays, job, rng.random(local.steps), scratch)
    found: np.ndarray = job.theta[0]
    return found


def work_of_table(charter: Charter, table: Where | None, holdout: float | None = None, model: Any = None) -> Work:
    """Return the work for the rows of a file; without a file, the peer has no rows."""
    rows = no_rows(charter) if table is None else read_rows(charter, table)
    if not len(rows.X) and charter.objective != "pooling":
        raise DataError(
            f"{table or 'no table'}: no rows; with objective={charter.objective!r} a peer needs some of its own"
        )
    return work_of(charter, rows.X, rows.y, holdout, model)._replace(fill=rows.fill, notes=rows.notes)


def main() -> None:
    """Read a table for a peer, and write its work to standard output."""
    folder, table, holdout, file = sys.argv[1:]
    try:
        charter = charter_in(folder)
        model = model_of(charter, file or None)
        work = work_of_table(charter, table or None, None if holdout == "auto" else float(holdout), model)
    except CoterieError as error:
        print(error, file=sys.stderr)
        sys.exit(3)
    sys.stdout.buffer.write(write_work(work))


__all__ = ["check_charter", "problem_of", "read_rows", "rows_of", "spelt", "work_of", "work_of_table"]

if __name__ == "__main__":
    main()
