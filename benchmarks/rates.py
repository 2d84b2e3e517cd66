"""How many updates a CPU second: coterie against the alternatives, side by side, in one run.

python benchmarks/rates.py [--quick] [--json FILE]
"""

import argparse
import contextlib
import importlib.util
import io
import json
import math
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numba import njit
from rich.console import Console
from rich.table import Table

import coterie as ct

TOLERANCE = 1e-9
#: The small network of the comparison with NumPy and gossipy: agents, dimensions, degree, points of each agent.
SMALL = (100, 20, 10, 20, 20)
#: Those of the comparison with a hand-written kernel; the last two numbers are the fewest and the most points.
SETTINGS = ((1000, 50, 10, 10, 100), (1000, 50, 10, 10, 10), (1000, 50, 4, 10, 100), (1000, 50, 50, 10, 100), SMALL)


def make_problem(n, p, degree, fewest, most):
    """Logistic regression, CD (3), on a random regular graph."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(fewest, most + 1, n)
    X = rng.standard_normal((sizes.sum(), p))
    y = np.where(rng.random(sizes.sum()) < 0.5, -1.0, 1.0)
    data = ct.AgentData(X, y, agents=np.repeat(np.arange(n), sizes))
    return ct.Problem.personalized(data, ct.graphs.random_regular(n, degree, seed=0), loss="logistic")


# -- the contestants: each takes a problem, prepares itself, and returns a function of who wakes ----------------------


def coterie(problem):
    return lambda order: ct.simulate(problem, ct.CoordinateDescent(), events=order, start="zeros").theta


class Flat(NamedTuple):
    """A problem as one would lay it out by hand for CD (5), with all that does not change worked out before."""

    start: np.ndarray  # rows of agent i: start[i] to start[i + 1] - 1
    X: np.ndarray
    y: np.ndarray
    tie: np.ndarray  # ties of agent i, likewise
    weight: np.ndarray
    mirror: np.ndarray  # the tie j to i of the tie i to j: where j keeps its copy of theta_i
    pull: np.ndarray  # (n,) D_ii + 2 a_i r_i, what theta_i is multiplied with in the gradient
    fit: np.ndarray  # (n,) a_i / m_i
    step: np.ndarray  # (n,) 1 / L_i


def flatten(problem):
    data, graph = problem.data, problem.graph
    owner = np.repeat(np.arange(problem.n), np.diff(graph.start))
    mirror = np.empty_like(graph.peer)
    mirror[np.lexsort((graph.peer, owner))] = np.lexsort((owner, graph.peer))
    pull = graph.degrees + 2.0 * problem.a * problem.ridge
    fit, step = problem.a * problem.share, 1.0 / problem.block_lipschitz
    return Flat(data.start, data.X, data.y, graph.start, graph.weight, mirror, pull, fit, step)


def blank(problem):
    """Models and the copies that neighbours hold of them."""
    return np.zeros((problem.n, problem.p)), np.zeros((problem.graph.peer.shape[0], problem.p))


fast = njit(forceinline=True, fastmath={"reassoc", "contract"})


@fast
def dot(a, b):
    total = 0.0
    for k in range(a.shape[0]):
        total += a[k] * b[k]
    return total


@fast
def axpy(scale, x, out):
    for k in range(out.shape[0]):
        out[k] += scale * x[k]


@njit
def monolith(order, flat, theta, copy, gradient):
    for i in order:
        mine = theta[i]
        for k in range(mine.shape[0]):
            gradient[k] = flat.pull[i] * mine[k]
        for e in range(flat.tie[i], flat.tie[i + 1]):
            axpy(-flat.weight[e], copy[e], gradient)
        for r in range(flat.start[i], flat.start[i + 1]):
            slope = -flat.y[r] / (1.0 + math.exp(flat.y[r] * dot(flat.X[r], mine)))
            axpy(flat.fit[i] * slope, flat.X[r], gradient)
        axpy(-flat.step[i], gradient, mine)
        for e in range(flat.tie[i], flat.tie[i + 1]):
            theirs = copy[flat.mirror[e]]
            for k in range(mine.shape[0]):
                theirs[k] = mine[k]


def hand_written(problem):
    flat = flatten(problem)

    def run(order):
        theta, copy = blank(problem)
        monolith(order, flat, theta, copy, np.zeros(problem.p))
        return theta

    return run


def numpy_loop(problem):
    flat = flatten(problem)

    def run(order):
        theta, copy = blank(problem)
        agents = []  # what each needs when it wakes: views, and numbers of Python rather than of NumPy
        for i in range(problem.n):
            rows, ties = slice(*flat.start[i : i + 2]), slice(*flat.tie[i : i + 2])
            views = theta[i], flat.X[rows], flat.y[rows], flat.weight[ties], copy[ties], flat.mirror[ties]
            agents.append((*views, float(flat.pull[i]), float(flat.fit[i]), float(flat.step[i])))
        for i in order.tolist():
            mine, X, y, weight, heard, mirror, pull, fit, step = agents[i]
            slope = -y / (1.0 + np.exp(y * (X @ mine)))
            mine -= step * (pull * mine - weight @ heard + fit * (slope @ X))
            copy[mirror] = mine
        return theta

    return run


def gossipy(problem):
    """Gossip learning in its fastest form: push to one neighbour, merge, one gradient step on all 20 points."""
    # gossipy imports torchvision, without asking for it, for data sets that are not used here.
    if importlib.util.find_spec("torchvision") is None:
        sys.modules["torchvision"] = types.ModuleType("torchvision")
    import torch
    from gossipy.core import AntiEntropyProtocol, CreateModelMode, StaticP2PNetwork
    from gossipy.data import DataDispatcher
    from gossipy.data.handler import ClassificationDataHandler
    from gossipy.model.handler import TorchModelHandler
    from gossipy.model.nn import LogisticRegression
    from gossipy.node import GossipNode
    from gossipy.simul import GossipSimulator

    torch.set_num_threads(1)
    data, n = problem.data, problem.n
    X, y = torch.tensor(data.X, dtype=torch.float32), torch.tensor(data.y > 0, dtype=torch.long)
    dispatcher = DataDispatcher(ClassificationDataHandler(X, y, test_size=0), n, eval_on_user=False, auto_assign=False)
    dispatcher.set_assignments([list(range(*data.start[i : i + 2])) for i in range(n)], None)
    handler = TorchModelHandler(
        net=LogisticRegression(problem.p, 2),
        optimizer=torch.optim.SGD,
        optimizer_params={"lr": 0.1},
        criterion=torch.nn.CrossEntropyLoss(),
        batch_size=0,
        create_model_mode=CreateModelMode.MERGE_UPDATE,
    )
    owner = np.repeat(np.arange(n), np.diff(problem.graph.start))
    adjacency = np.zeros((n, n))
    adjacency[owner, problem.graph.peer] = 1.0
    nodes = GossipNode.generate(dispatcher, StaticP2PNetwork(n, adjacency), handler, round_len=1, sync=True)
    simulator = GossipSimulator(nodes, dispatcher, delta=1, protocol=AntiEntropyProtocol.PUSH)

    def run(order):
        """In a round every node sends one model, and so one model is updated."""
        with contextlib.redirect_stdout(io.StringIO()):  # a progress bar
            simulator.start(len(order) // n)

    with contextlib.redirect_stdout(io.StringIO()):
        simulator.init_nodes()
    return run


# -- the races --------------------------------------------------------------------------------------------------------


class Race(NamedTuple):
    """Coterie against one opponent. ``least`` is the speed-up to reach."""

    what: str
    opponent: Callable
    size: tuple
    least: float
    wakes: int  # of ours
    their_wakes: int
    same: bool = True  # whether both must end with the same models


class Row(NamedTuple):
    """What a race gave: updates in a CPU second, and the largest difference between the models."""

    what: str
    size: str
    ours: float
    theirs: float
    speedup: float
    least: float
    reached: bool
    difference: float | None


def races():
    yield from (Race("hand-written kernel", hand_written, size, 1 / 1.3, 200_000, 200_000) for size in SETTINGS)
    yield Race("NumPy event loop", numpy_loop, SMALL, 15.0, 500_000, 20_000)
    if importlib.util.find_spec("gossipy") is None:
        print("gossipy: not installed (pip install 'coterie[bench]')")
    else:
        yield Race("gossipy", gossipy, SMALL, 1000.0, 500_000, 1_000, same=False)


def settle(race, repetitions):
    """Both sides by turns, the best of each, in CPU time of this thread; compiled and warm before."""
    problem = make_problem(*race.size)
    sides = coterie(problem), race.opponent(problem)
    orders = [np.random.default_rng(1).integers(0, problem.n, wakes) for wakes in (race.wakes, race.their_wakes)]
    warm = [run(orders[1]) for run in sides]
    difference = float(np.abs(warm[0] - warm[1]).max()) if race.same else None
    if race.same and not difference < TOLERANCE:
        raise AssertionError(f"{race.what}: the models differ by {difference:.1e}")
    best = [math.inf, math.inf]
    for _ in range(repetitions):
        for side, (run, order) in enumerate(zip(sides, orders, strict=True)):
            began = time.thread_time()
            run(order)
            best[side] = min(best[side], time.thread_time() - began)
    ours, theirs = race.wakes / best[0], race.their_wakes / best[1]
    n, p, degree, fewest, most = race.size
    points = f"{fewest}" if fewest == most else f"{fewest}..{most}"
    size = f"n={n}, p={p}, degree {degree}, {points} points"
    return Row(race.what, size, ours, theirs, ours / theirs, race.least, ours / theirs >= race.least, difference)


def in_words(speedup):
    return f"x{speedup:,.1f} faster" if speedup >= 1.0 else f"x{1.0 / speedup:.2f} slower"


def show(rows):
    table = Table(title="Updates per CPU second")
    for name in ("coterie against", "size", "ours", "theirs", "ours is", "target", "reached", "models differ by"):
        table.add_column(name, justify="left" if name in ("coterie against", "size") else "right")
    for row in rows:
        difference = "other method" if row.difference is None else f"{row.difference:.0e}"
        reached = "[green]yes" if row.reached else "[red]no"
        rates = f"{row.ours:,.0f}", f"{row.theirs:,.0f}", in_words(row.speedup), in_words(row.least)
        table.add_row(row.what, row.size, *rates, reached, difference)
    Console(width=150).print(table)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions: less exact")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table to a file too")
    arguments = parser.parse_args()
    rows = []
    for race in races():
        rows.append(settle(race, repetitions=3 if arguments.quick else 9))
        print(f"{race.what}, {rows[-1].size}: {in_words(rows[-1].speedup)}", file=sys.stderr, flush=True)
    show(rows)
    if arguments.json:
        arguments.json.write_text(json.dumps([row._asdict() for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
