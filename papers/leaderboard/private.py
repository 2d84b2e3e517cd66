"""Private methods, in the form that the leaderboard asks for: linear models, with nothing tuned.

What a row is scaled with is taken as public, and so is the number of rows.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import coterie as ct

from .contenders import Race, neighbours

#: What each agent may spend beside epsilon; the norm that gradients of rows are shortened to.
DELTA, CLIP = 1e-5, 1.0
#: Everybody's own linear model, solved exactly: what the others are to be compared with.
ALONE = "exact alone"
#: Methods that have a private form: the graph they run on, and wakes of each agent, with and without noise.
METHODS = {
    ALONE: ("", "nobody", 0, 0),
    "descent": ("CoordinateDescent", "given", 5, 100),
    "propagation": ("ModelPropagation", "given", 20, 20),
    "gossip pooling": ("GossipPooling", "anybody", 30, 30),
}


def hidden(race: Race, name: str, epsilon: float | None, seeds: int) -> dict[str, Any]:
    """Scores of all agents, means over seeds; bytes and CPU seconds of one run. Without an epsilon: without noise."""
    kind, place, noisy, plain = METHODS[name]
    graph = neighbours(race, place)
    if name == "gossip pooling":
        problem = ct.Problem.separate(race.train, graph, loss=race.rule)
    else:
        problem = ct.Problem.personalized(race.train, graph, loss=race.rule, mu=1.0)
    if name == ALONE:
        start = time.process_time()
        scores = race.scores(problem.local())
        return {"scores": scores, "bytes": 0, "cpu seconds": time.process_time() - start}
    if name == "propagation" and epsilon is None:  # of models as they are
        size = race.train.sizes / race.train.sizes.max()
        problem = ct.Problem.propagation(problem.local(), graph, alpha=0.5, confidence=size)
    method = getattr(ct, kind)()
    if epsilon is not None:
        # Columns of mean 0 and variance 1: everybody knows how long a row is.
        method = ct.Private(method, epsilon, DELTA, clip=CLIP, row_norm=float(np.sqrt(race.train.p)))
    wakes = (plain if epsilon is None else noisy) * problem.n
    ct.simulate(problem, method, wakes=1, seed=0)  # compiled before it is timed
    start = time.process_time()
    runs = [ct.simulate(problem, method, wakes=wakes, seed=seed) for seed in range(seeds)]
    seconds = (time.process_time() - start) / seeds
    scores = np.mean([race.scores(run.theta) for run in runs], axis=0)
    return {"scores": scores, "bytes": int(np.mean([run.bytes for run in runs])), "cpu seconds": seconds}
