"""Training a small network by D-PSGD: compiled, with PyTorch, and beside gossipy, in updates a CPU second, in one run.

python benchmarks/models.py [--quick] [--json FILE]

100 agents with 40 rows each on a 4-regular graph; an update is one step on a minibatch of 16 rows, and its messages.
"""

import argparse
import contextlib
import functools
import importlib.util
import io
import json
import math
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

import coterie as ct

AGENTS, ROWS, DEGREE, BATCH, RATE = 100, 40, 4, 16, 0.1
#: Features, hidden units and classes: 970 and 9,946 parameters.
SIZES = ((49, 16, 10), (196, 48, 10))


class Side(NamedTuple):
    """A contestant: ``make(size)`` prepares training, and returns a function of a number of updates."""

    name: str
    make: Callable[[tuple[int, int, int]], Callable[[int], Any]]
    updates: tuple[int, int]  # in one repetition, by size
    least: tuple[float | None, float | None]  # times gossipy, by size


def examples(size):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(AGENTS * ROWS, size[0])), rng.integers(0, size[2], AGENTS * ROWS)
    return ct.AgentData(X, y, agents=np.repeat(np.arange(AGENTS), ROWS))


def graph():
    return ct.graphs.random_regular(AGENTS, DEGREE, seed=0)


def network(size):
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(size[0], size[1]), torch.nn.Tanh(), torch.nn.Linear(size[1], size[2]))


def in_torch(size, dtype):
    import torch

    return ct.models.Torch(network(size), torch.nn.functional.cross_entropy, dtype=dtype)


def as_function(size):
    """Return the network as functions of NumPy arrays."""
    two = ct.models.TwoLayer(*size)

    def layers(theta):
        w, b, v, c = (theta[part] for part in two.parts.values())
        return w.reshape(size[1], -1), b, v.reshape(size[2], -1), c

    def softmax(theta, X):
        w, b, v, c = layers(theta)
        hidden = np.tanh(X @ w.T + b)
        score = hidden @ v.T + c
        score -= score.max(axis=1, keepdims=True)
        return hidden, score

    def value(theta, X, y):
        score = softmax(theta, X)[1]
        return np.mean(np.log(np.exp(score).sum(axis=1)) - score[np.arange(len(y)), y.astype(int)])

    def gradient(theta, X, y):
        hidden, score = softmax(theta, X)
        slope = np.exp(score)
        slope /= slope.sum(axis=1, keepdims=True)
        slope[np.arange(len(y)), y.astype(int)] -= 1.0
        slope /= len(y)
        back = (slope @ layers(theta)[2]) * (1.0 - hidden * hidden)
        return np.concatenate([(back.T @ X).ravel(), back.sum(axis=0), (slope.T @ hidden).ravel(), slope.sum(axis=0)])

    return ct.models.Function(two.size, value, gradient, initial=two.initial())


def ours(model, unit):
    """Run D-PSGD by wakes or by rounds, with equal initial parameters of all agents."""

    def make(size):
        problem = ct.Problem.differentiable(examples(size), graph(), model(size))
        method = ct.gossip.DPSGD(ct.optim.SGD(RATE, steps=1, batch=BATCH))

        def run(updates):
            ct.simulate(problem, method, **{unit: updates if unit == "wakes" else updates // AGENTS})

        return run

    return make


def one_by_one(size):
    """Rounds in which the module is called for one agent after the other."""

    class Loop(ct.models.Torch):
        gradients = ct.models.Function.gradients

    import torch

    model = Loop(network(size), torch.nn.functional.cross_entropy)
    return ours(lambda _: model, "rounds")(size)


def gossipy(size):
    """Push to one neighbour, which merges the two models and takes one step."""
    # gossipy imports torchvision, without asking for it, for data sets that are not used here.
    if "torchvision" not in sys.modules and importlib.util.find_spec("torchvision") is None:
        sys.modules["torchvision"] = types.ModuleType("torchvision")
    import torch
    from gossipy.core import AntiEntropyProtocol, CreateModelMode, StaticP2PNetwork
    from gossipy.data import DataDispatcher
    from gossipy.data.handler import ClassificationDataHandler
    from gossipy.model import TorchModel
    from gossipy.model.handler import TorchModelHandler
    from gossipy.node import GossipNode
    from gossipy.simul import GossipSimulator

    class Network(TorchModel):
        def __init__(self):
            super().__init__()
            self.net = network(size)

        def init_weights(self, *args, **kwargs):
            pass

        def forward(self, x):
            return self.net(x)

    torch.set_num_threads(1)
    data, edges = examples(size), graph()
    X, y = torch.tensor(data.X, dtype=torch.float32), torch.tensor(data.y, dtype=torch.long)
    handler = ClassificationDataHandler(X, y, test_size=0)
    dispatcher = DataDispatcher(handler, AGENTS, eval_on_user=False, auto_assign=False)
    # gossipy takes steps through all rows of a node: with one minibatch of all rows, this is one step, as in coterie.
    dispatcher.set_assignments([list(range(i * ROWS, i * ROWS + BATCH)) for i in range(AGENTS)], None)
    made = TorchModelHandler(
        net=Network(),
        optimizer=torch.optim.SGD,
        optimizer_params={"lr": RATE},
        criterion=torch.nn.CrossEntropyLoss(),
        batch_size=0,
        create_model_mode=CreateModelMode.MERGE_UPDATE,
    )
    adjacency = np.zeros((AGENTS, AGENTS))
    adjacency[np.repeat(np.arange(AGENTS), np.diff(edges.start)), edges.peer] = 1.0
    nodes = GossipNode.generate(dispatcher, StaticP2PNetwork(AGENTS, adjacency), made, round_len=1, sync=True)
    simulator = GossipSimulator(nodes, dispatcher, delta=1, protocol=AntiEntropyProtocol.PUSH)
    with contextlib.redirect_stdout(io.StringIO()):
        simulator.init_nodes()

    def run(updates):
        with contextlib.redirect_stdout(io.StringIO()):  # a progress bar
            simulator.start(updates // AGENTS)

    return run


COMPILED = Side(
    "ct.models.TwoLayer, compiled, wakes",
    ours(lambda size: ct.models.TwoLayer(*size), "wakes"),
    (40_000, 4_000),
    (40, 7),
)
VMAP = "ct.models.Torch, rounds by vmap"
LOOP = "ct.models.Torch, rounds, one agent after the other"
GOSSIPY = "gossipy, float32"


def sides():
    yield COMPILED
    yield Side(
        "ct.models.TwoLayer, compiled, rounds",
        ours(lambda size: ct.models.TwoLayer(*size), "rounds"),
        (40_000, 4_000),
        (40, 7),
    )
    yield Side("ct.models.Function, NumPy, wakes", ours(as_function, "wakes"), (2_000, 1_000), (None, None))
    if importlib.util.find_spec("torch") is None:
        print("torch: not installed (pip install 'coterie[torch]')", file=sys.stderr)
        return
    yield Side(VMAP, ours(lambda size: in_torch(size, "float64"), "rounds"), (20_000, 4_000), (10, None))
    yield Side(f"{VMAP}, float32", ours(lambda size: in_torch(size, "float32"), "rounds"), (20_000, 4_000), (None, 3))
    yield Side(LOOP, one_by_one, (1_000, 1_000), (None, None))
    for dtype in ("float64", "float32"):
        make = ours(functools.partial(in_torch, dtype=dtype), "wakes")
        yield Side(f"ct.models.Torch, wakes, {dtype}", make, (1_000, 1_000), (2, None))
    if importlib.util.find_spec("gossipy") is None:
        print("gossipy: not installed (pip install 'coterie[bench]')", file=sys.stderr)
        return
    yield Side(GOSSIPY, gossipy, (1_000, 1_000), (None, None))


def rates(repetitions):
    """Updates a CPU second of every side and size: all by turns, the best of each; compiled and warm before."""
    found = {}
    for number, size in enumerate(SIZES):
        running = [(side, side.make(size), side.updates[number]) for side in sides()]
        best = {side.name: math.inf for side, _, _ in running}
        for turn in range(repetitions + 1):
            for side, run, updates in running:
                began = time.process_time()
                run(updates if turn else AGENTS)
                if turn:
                    best[side.name] = min(best[side.name], time.process_time() - began)
        for side, _, updates in running:
            found[side.name, number] = updates / best[side.name]
            print(f"{side.name}: {found[side.name, number]:,.0f}", file=sys.stderr, flush=True)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions: less exact")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table to a file too")
    arguments = parser.parse_args()
    found = rates(3 if arguments.quick else 9)
    table, rows = Table(title="Updates a CPU second"), []
    table.add_column("who")
    for size in SIZES:
        for name in (f"{ct.models.TwoLayer(*size).size:,} parameters", "times gossipy", "target"):
            table.add_column(name, justify="right")
    for side in sides():
        cells = []
        for number in range(len(SIZES)):
            rate, least = found[side.name, number], side.least[number]
            times = rate / found[GOSSIPY, number] if (GOSSIPY, number) in found else math.nan
            rows.append({"who": side.name, "size": SIZES[number], "rate": rate, "times": times, "least": least})
            target = "" if least is None else f"[{'green' if times >= least else 'red'}]{least}"
            cells += [f"{rate:,.0f}", f"{times:.1f}", target]
        table.add_row(side.name, *cells)
    Console(width=150).print(table)
    if (VMAP, 0) in found:
        gains = ", ".join(f"{found[VMAP, number] / found[LOOP, number]:.1f}" for number in range(len(SIZES)))
        print(f"rounds by vmap against a loop over agents: {gains} times (target at 970 parameters: 5)")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
