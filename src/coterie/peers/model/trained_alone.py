"""What a peer makes of its own rows alone, of a model that is not linear: the same training, with nobody's help."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.training import new_job, train_one
from .work import world_of_one

if TYPE_CHECKING:
    from .work import Work

#: How often the steps between two letters are taken.
WAKES = 200


def trained_alone(work: Work, local: Any) -> np.ndarray:
    """The model after as many steps as :data:`WAKES` wakes of the group's optimiser take, from where all begin."""
    world = world_of_one(work, 0, {}, 1, max(work.size, 1), batch=local.batch)
    job, rng, scratch = new_job(local, work.theta[None, :]), np.random.default_rng(0), np.zeros(work.p)
    for _ in range(WAKES):
        train_one(local, world, job, rng.random(local.steps), scratch)
    found: np.ndarray = job.theta[0]
    return found
