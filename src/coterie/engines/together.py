"""A synchronous round of a method that trains, with one call of the model for all agents: for models in Python.

Code around the training stays compiled, since only the training uses the model.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core import loop
from ..core.arrays import AgentArrays
from ..core.models import Linear
from ..core.training import EVERY, LOSS, STEPS, job_of, local_of, pick_all, prepare_all, step_all


def round_in_python(
    method: Any,
    arrays: AgentArrays,
    own: Any,
    edge: Any,
    present: np.ndarray,
    dice: np.ndarray,
    moment: float,
    outbox: Any,
    egress: Any,
    account: np.ndarray,
) -> None:
    """Train all agents that are present, then deliver their messages."""
    blank = arrays._replace(model=Linear())  # a placeholder: this code does not use the model
    local, job = local_of(method), job_of(own)
    busy, phase = present.copy(), 0
    while prepare_all(method, blank, own, edge, dice, moment, outbox, phase, busy):
        steps = np.where(job.plan[:, STEPS] == EVERY, local.steps, job.plan[:, STEPS])
        asks = np.flatnonzero(busy & (steps == 0))
        if asks.size:
            ridge = arrays.ridge[asks] * np.square(job.theta[asks]).sum(axis=1)
            job.plan[asks, LOSS] = arrays.model.values(arrays, job.theta[asks], asks) + ridge
        time = 0
        while (who := np.flatnonzero(busy & (steps > time))).size:
            pick = thrown = None
            if local.batch > 0:
                pick, thrown = np.empty((who.size, local.batch), np.int64), dice[who, phase * local.steps + time]
                pick_all(arrays.row_start, who, thrown, pick)
            gradients = arrays.model.gradients(arrays, job.theta[who], who, pick, thrown)
            step_all(local, blank, job, who, gradients, time)
            time += 1
        phase += 1
    loop.publish_all(method, blank, own, edge, present, dice, moment, outbox, egress, account)
