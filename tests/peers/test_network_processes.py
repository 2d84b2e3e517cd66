"""Three real processes learn a network, as typed, and go on after a kill: better than each of them alone."""

import csv
import json

import numpy as np
import pytest
from processes import free_port, status, until
from typed import said

from coterie.peers.group.charter import read_charter
from coterie.peers.group.networks import margins, model_of
from coterie.peers.node.process import running

ROWS = 40
PATIENCE = 240.0  # three times PyTorch may take a minute to load
#: What members bring in the second case.
MODULE = """
import torch
import coterie as ct

def model():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    return ct.models.Torch(net, torch.nn.functional.cross_entropy)
"""


def table(path, rng, count):
    """Rows whose class is whether both coordinates have the same sign."""
    X = rng.normal(size=(count, 2))
    same = X[:, 0] * X[:, 1] > 0
    with path.open("w", newline="") as file:
        rows = ((*x, "yes" if one else "no") for x, one in zip(X, same, strict=True))
        csv.writer(file).writerows([("a", "b", "same"), *rows])
    return X, same


@pytest.mark.slow
@pytest.mark.parametrize("brought", [False, pytest.param(True, marks=pytest.mark.torch)])
def test_three_processes_learn_a_network(tmp_path, processes, brought):
    rng, names = np.random.default_rng(1), ("ann", "bob", "cat")
    club, file = tmp_path / "club", tmp_path / "model.py"
    model = ["--hidden", "8"]
    if brought:
        pytest.importorskip("torch")
        file.write_text(MODULE)
        model = ["--model", file, "--shared", "0.", "--tied", "2."]
    learning = ("--set", "rate=0.3", "--set", "steps=10", "--set", "batch=16", "--rate", "5", "--max-rows", ROWS)
    said("group", "create", club, "--features", "a,b", "--target", "same", "--classes", "no,yes", *model, *learning)
    for k, name in enumerate(names):
        table(tmp_path / f"{name}.csv", rng, ROWS)
        edges = [word for other in names[:k] for word in ("--edge", other)]
        said("peer", "init", tmp_path / name, "--group", club, "--listen", f"127.0.0.1:{free_port()}", *edges)
    more = ("--model", file) if brought else ()

    def start(name):
        return processes.start(name, "--data", tmp_path / f"{name}.csv", "--holdout", "0", *more)

    for name in names:
        start(name)
    until(lambda: all(status(tmp_path / name)["wakes"] > 40 for name in names), "they do not wake", PATIENCE)
    processes.here["bob"].kill()
    processes.here["bob"].wait()
    before = status(tmp_path / "bob")["wakes"]
    start("bob")
    until(lambda: status(tmp_path / "bob")["wakes"] > before + 40, "bob does not come back", PATIENCE)
    seen = said("peer", "status", tmp_path / "ann")
    assert seen["refused"].keys() <= {"unproven"}
    assert seen["messages_in"] > 100
    for name in names:
        said("peer", "stop", tmp_path / name)
    assert all(running(tmp_path / name) is None for name in names)
    charter = read_charter((club / "charter.json").read_bytes())
    network = model_of(charter, file if brought else None)
    X, same = table(tmp_path / "new.csv", rng, 4000)
    right = {}
    for name in names:
        kept = json.loads((tmp_path / name / "model.json").read_text())
        for how in ("published", "alone"):
            right[name, how] = np.mean((margins(network, np.array(kept[how]), X) > 0) == same)
        found = said("peer", "predict", tmp_path / name, tmp_path / "new.csv", "-o", tmp_path / "out.csv", *more)
        assert found["rows"] == 4000
        with (tmp_path / "out.csv").open() as answers:
            told = [row["prediction"] == "yes" for row in csv.DictReader(answers)]
        assert np.mean(told == same) == right[name, "published"]
    together, alone = (np.mean([right[name, how] for name in names]) for how in ("published", "alone"))
    assert together > alone + 0.03
