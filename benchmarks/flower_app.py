"""Federated averaging and local fine-tuning in Flower's simulation, for side_by_side.py.

    python benchmarks/flower_app.py ROWS.npz FOUND.npz ROUNDS

It needs NumPy and ``flwr[simulation]``, and nothing of coterie: it may run in an environment of its own. ROWS.npz has
rows grouped by agent (X, y of -1 and 1, start); FOUND.npz will have the models, and what they took.
"""

import functools
import os
import sys
import time
from pathlib import Path

import numpy as np

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

#: Gradient steps of a client in a round, their length, and steps of fine-tuning: the models after each are kept.
STEPS, RATE, TUNING = 5, 1.0, (5, 20, 100)
ROWS = "SIDE_BY_SIDE_ROWS"

client, server = ClientApp(), ServerApp()


@functools.cache
def rows():
    """Read once in each process that plays clients, rather than sent with every message."""
    with np.load(os.environ[ROWS]) as file:
        return file["X"], file["y"], file["start"]


@client.train()
def train(message, context):
    X, y, start = rows()
    agent = int(context.node_config["partition-id"])
    mine = slice(start[agent], start[agent + 1])
    A, t = X[mine], y[mine]
    (theta,) = message.content["arrays"].to_numpy_ndarrays()
    theta, kept = theta.copy(), []
    stops = TUNING if message.content["config"].get("tune") else (STEPS,)
    for step in range(1, stops[-1] + 1):
        theta -= RATE * ((-t / (1.0 + np.exp(t * (A @ theta)))) @ A) / len(t)
        if step in stops:
            kept.append(theta.copy())
    metrics = MetricRecord({"num-examples": len(t), "agent": agent})
    return Message(RecordDict({"arrays": ArrayRecord(kept), "metrics": metrics}), reply_to=message)


def cpu():
    """CPU seconds of this process and all that it has started: Ray's workers and servers."""
    parent, used = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:  # it has ended
            continue
        pid = int(stat.parent.name)
        parent[pid], used[pid] = int(fields[1]), sum(map(int, fields[11:15]))

    def ours(pid):
        while pid and pid != os.getpid():
            pid = parent.get(pid, 0)
        return bool(pid)

    return sum(ticks for pid, ticks in used.items() if ours(pid)) / os.sysconf("SC_CLK_TCK")


@server.main()
def learn(grid, context):
    n, p = len(rows()[2]) - 1, rows()[0].shape[1]

    def tune(arrays):
        content = RecordDict({"arrays": arrays, "config": ConfigRecord({"tune": True})})
        messages = [Message(content, dst_node_id=node, message_type="train") for node in grid.get_node_ids()]
        models = np.zeros((len(TUNING), n, p))
        for reply in grid.send_and_receive(messages):
            models[:, reply.content["metrics"]["agent"]] = reply.content["arrays"].to_numpy_ndarrays()
        return models

    every = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=n, min_available_nodes=n)
    every.start(grid, ArrayRecord([np.zeros(p)]), num_rounds=1)  # workers start and import: not counted
    began = time.perf_counter(), cpu()
    common = every.start(grid, ArrayRecord([np.zeros(p)]), num_rounds=int(sys.argv[3])).arrays
    tuned = tune(common)
    took = time.perf_counter() - began[0], cpu() - began[1]
    (common,) = common.to_numpy_ndarrays()
    np.savez(sys.argv[2], common=common, tuned=tuned, wall=took[0], cpu=took[1], updates=n * (int(sys.argv[3]) + 1))


if __name__ == "__main__":
    os.environ[ROWS] = str(Path(sys.argv[1]).resolve())
    # Workers look for this module under its own name; they find it in the folder of the script.
    import flower_app

    run_simulation(
        flower_app.server,
        flower_app.client,
        num_supernodes=len(rows()[2]) - 1,
        backend_config={
            "init_args": {"num_cpus": os.cpu_count(), "include_dashboard": False, "logging_level": "error"},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
