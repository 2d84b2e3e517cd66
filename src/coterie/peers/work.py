"""What a peer works on: its own rows, and its part of the objective that the charter states.

:func:`work_of` makes it from a table with the same :class:`~coterie.Problem` that the laboratory uses; it needs pandas
and the rest of the library for that. The peer itself needs only the numbers, which travel from one process to the other
as bytes (:func:`write_work`): so a peer stays small.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..core import losses
from ..core.linear import DenseRows, frozen
from ..core.methods import METHODS
from ..core.world import VACANT, World
from ..core.wrap.graph_rule import GraphRule
from ..core.wrap.learned import Learned
from ..core.wrap.trimmed import Trimmed
from ..errors import DataError, ParameterError
from ..problem.confidence import confidences

if TYPE_CHECKING:
    from .agreement import Charter

#: Settings of boosting that are the problem's, not the method's.
BOOSTING = {"stumps": 200, "beta": 10.0, "low": -3.0, "high": 3.0}


class Work(NamedTuple):
    """One agent's part of a problem, without its ties."""

    loss: Any
    features: np.ndarray  # (rows, p)
    labels: np.ndarray  # (rows,)
    size: int  # examples
    row_weight: float
    ridge: float
    weight: float  # a_i / (c_i D_ii) where a_i grows with the degree, a_i / c_i where it does not
    confident: bool  # whether a_i has a confidence c_i in it
    curvature: float
    smooth: float
    scaled: bool
    radius: float
    outputs: int
    theta: np.ndarray  # (p,) the model to start from
    local: np.ndarray  # (p,) the model trained alone
    seen: np.ndarray  # (k, p) features of the rows that models are measured with
    seen_labels: np.ndarray  # (k,)
    aside: bool  # whether these were kept aside, and are not among the rows to learn from

    @property
    def p(self) -> int:
        """Numbers in a model."""
        return self.theta.shape[0]


def world_of_one(
    work: Work, address: int, ties: Mapping[int, float], n_agents: int, largest: int, spare: int = 0
) -> World:
    """The world of one agent, tied as given.

    Parameters
    ----------
    work : Work
    address : int
    ties : mapping
        Weights by address.
    n_agents : int
        How many addresses there are.
    largest : int
        M of the confidences.
    spare : int
        Slots for further ties.

    Returns
    -------
    World
    """
    m = work.features.shape[0]
    peer = np.array([*ties, *[VACANT] * spare], np.int64)
    weight = np.array([*ties.values(), *[0.0] * spare])
    loss_weight = work.weight * (float(confidences(work.size, largest)) if work.confident else 1.0)
    return World(
        loss=work.loss,
        rows=DenseRows(frozen(work.features)),
        labels=frozen(work.labels),
        row_start=frozen(np.array([0, m])),
        tie_start=frozen(np.array([0, peer.size])),
        peer=peer,
        inverse=np.full(peer.size, VACANT),
        weight=weight,
        choice=(peer != VACANT).astype(float),
        row_weight=frozen(np.array([work.row_weight])),
        ridge=frozen(np.array([work.ridge])),
        loss_weight=frozen(np.array([loss_weight])),
        curvature=frozen(np.array([work.curvature])),
        address=frozen(np.array([address])),
        smooth=work.smooth,
        scaled=work.scaled,
        radius=work.radius,
        outputs=work.outputs,
        n_agents=n_agents,
    )


def method_of(charter: Charter) -> Any:
    """The method that a charter states, composed as in the laboratory.

    Parameters
    ----------
    charter : Charter

    Returns
    -------
    rule
    """
    settings = {name: value for name, value in charter.settings.items() if name not in BOOSTING}
    try:
        method = type(METHODS[charter.method])(**settings)
        if charter.privacy is not None:
            terms: dict[str, Any] = dict(charter.privacy)
            if charter.method == "propagation":
                terms.setdefault("max_rows", charter.max_rows)
            from ..privacy import Private  # with SciPy, which others do not need

            method = Private(method, **terms)
        if charter.trim > 0.0:
            method = Trimmed(method, charter.trim)
        if charter.learned is not None:
            rule: dict[str, Any] = dict(charter.learned)
            every, sampling = rule.pop("every", 1.0), rule.pop("sampling", "shuffle")
            # A tie of an honest agent weighs about 1 / sqrt(lam); one that a hostile one makes, no more than this.
            rule.setdefault("max_weight", 10.0 / math.sqrt(rule.get("lam", 1.0)))
            method = Learned(method, GraphRule(**rule), every=every, sampling=sampling)
    except TypeError as error:
        raise ParameterError(f"the charter: {error}") from None
    return method


# -- from one process to another --------------------------------------------------------------------------------------


def write_work(work: Work) -> bytes:
    """A work as bytes: npz without pickles.

    Examples
    --------
    >>> one = np.ones((1, 1))
    >>> work = Work(losses.Squared(), one, one[0], 1, 1.0, 0.0, 1.0, False, 1.0, 0.5, True, np.inf, 1, one[0], one[0],
    ...             one, one[0], False)
    >>> read_work(write_work(work)).loss
    Squared()
    """
    arrays: dict[str, Any] = {name: value for name, value in work._asdict().items() if isinstance(value, np.ndarray)}
    numbers = {name: value for name, value in work._asdict().items() if name not in arrays and name != "loss"}
    buffer = io.BytesIO()
    head = json.dumps({"loss": losses.loss_to_json(work.loss), "numbers": numbers}).encode()
    np.savez(buffer, head=np.frombuffer(head, np.uint8), **arrays)
    return buffer.getvalue()


def read_work(content: bytes) -> Work:
    """The other way round; a :class:`~coterie.errors.DataError` for anything else.

    Examples
    --------
    >>> read_work(b"?")
    Traceback (most recent call last):
    ...
    coterie.errors.DataError: not the work of a peer: ...
    """
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        head = json.loads(arrays.pop("head").tobytes())
        return Work(loss=losses.loss_from_json(head["loss"]), **head["numbers"], **arrays)
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise DataError(f"not the work of a peer: {error}") from None
