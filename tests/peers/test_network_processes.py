"""Three real processes learn a network, as typed, and go on after a kill: better than each of them alone."""

import csv
import json
import os
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from coterie.peers.group.charter import read_charter
from coterie.peers.group.networks import margins, model_of
from coterie.peers.node.process import running

ROWS = 40
#: What members bring in the second case.
MODULE = """
import torch
import coterie as ct

def model():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    return ct.Torch(net, torch.nn.functional.cross_entropy)
"""


def coterie(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "coterie", *map(str, arguments), "--json"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def table(path, rng, count):
    """Rows whose class is whether both coordinates have the same sign."""
    X = rng.normal(size=(count, 2))
    same = X[:, 0] * X[:, 1] > 0
    with path.open("w", newline="") as file:
        rows = ((*x, "yes" if one else "no") for x, one in zip(X, same, strict=True))
        csv.writer(file).writerows([("a", "b", "same"), *rows])
    return X, same


def until(holds, what, seconds=240.0):  # three times PyTorch may take a minute to load
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def wakes_of(folder):
    try:
        return json.loads((folder / "status.json").read_text())["wakes"]
    except (OSError, ValueError):
        return 0


@pytest.mark.slow
@pytest.mark.parametrize("brought", [False, pytest.param(True, marks=pytest.mark.torch)])
def test_three_processes_learn_a_network(tmp_path, brought):
    rng, names = np.random.default_rng(1), ("ann", "bob", "cat")
    club, file = tmp_path / "club", tmp_path / "model.py"
    model = ["--hidden", "8"]
    if brought:
        pytest.importorskip("torch")
        file.write_text(MODULE)
        model = ["--model", file, "--shared", "0.", "--tied", "2."]
    learning = ("--set", "rate=0.3", "--set", "steps=10", "--set", "batch=16", "--rate", "5", "--max-rows", ROWS)
    coterie("group", "create", club, "--features", "a,b", "--target", "same", "--classes", "no,yes", *model, *learning)
    for k, name in enumerate(names):
        table(tmp_path / f"{name}.csv", rng, ROWS)
        ties = [word for other in names[:k] for word in ("--tie", other)]
        coterie("peer", "init", tmp_path / name, "--group", club, "--listen", f"127.0.0.1:{free_port()}", *ties)
    processes = {}

    def start(name):
        command = [sys.executable, "-m", "coterie", "peer", "run", tmp_path / name, "--data", tmp_path / f"{name}.csv"]
        command += ["--holdout", "0", *(["--model", file] if brought else [])]
        log = (tmp_path / f"{name}.log").open("ab")
        processes[name] = subprocess.Popen([*map(str, command)], stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"})
        log.close()

    try:
        for name in names:
            start(name)
        until(lambda: all(wakes_of(tmp_path / name) > 40 for name in names), "they do not wake")
        processes["bob"].send_signal(signal.SIGKILL)
        processes["bob"].wait()
        before = wakes_of(tmp_path / "bob")
        start("bob")
        until(lambda: wakes_of(tmp_path / "bob") > before + 40, "bob does not come back")
        seen = coterie("peer", "status", tmp_path / "ann")
        assert seen["refused"].keys() <= {"unproven"}
        assert seen["letters_in"] > 100
        for name in names:
            coterie("peer", "stop", tmp_path / name)
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
    assert all(running(tmp_path / name) is None for name in names)
    charter = read_charter((club / "charter.json").read_bytes())
    network = model_of(charter, file if brought else None)
    X, same = table(tmp_path / "new.csv", rng, 4000)
    right = {}
    for name in names:
        kept = json.loads((tmp_path / name / "model.json").read_text())
        for how in ("published", "alone"):
            right[name, how] = np.mean((margins(network, np.array(kept[how]), X) > 0) == same)
        more = ("--model", file) if brought else ()
        found = coterie("peer", "predict", tmp_path / name, tmp_path / "new.csv", "-o", tmp_path / "out.csv", *more)
        assert found["rows"] == 4000
        with (tmp_path / "out.csv").open() as answers:
            told = [row["prediction"] == "yes" for row in csv.DictReader(answers)]
        assert np.mean(told == same) == right[name, "published"]
    together, alone = (np.mean([right[name, how] for name in names]) for how in ("published", "alone"))
    assert together > alone + 0.03
