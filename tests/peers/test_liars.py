"""A group of real processes, one of which lies: the others are as good as alone, or better."""

import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from processes import status, until
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from typed import typed

from coterie.peers.group import groups
from coterie.peers.lab.processes import free_ports

SIZES = (60, 60, 40, 40, 30, 20, 12)
RATE = 4.0
#: How long they learn; and how long they may take to begin.
SECONDS, PATIENCE = 25.0, 60.0


def tables(rng, rows):
    """Rows in raw units of one member, to learn from and to look at."""
    age, dose = rng.normal(52, 14, rows + 400).round(), rng.gamma(4, 120, rows + 400).round(1)
    slope = np.array([0.05, -0.006]) + rng.normal(0, [0.02, 0.002])
    margin = rng.normal(0, 0.8) + slope[0] * (age - 52) + slope[1] * (dose - 480)
    ill = np.where(rng.random(rows + 400) < 1 / (1 + np.exp(-margin)), "yes", "no")
    frame = pd.DataFrame({"age": age, "dose": dose, "ill": ill})
    return frame[:rows], frame[rows:]


def brier(probability, frame):
    return float(np.mean((probability - (frame["ill"] == "yes")) ** 2))


@pytest.mark.slow
@pytest.mark.parametrize(("conduct", "most"), [("opposite", 1.05), ("shift", 1.05), ("moderate", 4 / 3)])
def test_one_liar_does_not_make_the_others_worse_than_alone(tmp_path, processes, conduct, most):
    """Means over the honest: of the six, some are a little worse by chance, whoever lies."""
    rng = np.random.default_rng(3)
    groups.create(tmp_path / "club", features=["age", "dose"], target="ill", labels=["no", "yes"], rate=RATE)
    names = [f"p{k}" for k in range(len(SIZES))]
    new = [
        groups.Newcomer(tmp_path / name, name, f"127.0.0.1:{port}")
        for name, port in zip(names, free_ports(len(names)), strict=True)
    ]
    groups.enroll_all(tmp_path / "club", new, durable=False)
    frames = {name: tables(rng, rows) for name, rows in zip(names, SIZES, strict=True)}
    liar, bad = names[0], str(Path(__file__).with_name("bad_members.py"))
    for name, (seen, _) in frames.items():
        seen.to_csv(tmp_path / f"{name}.csv", index=False)
        words = ("--data", f"{name}.csv")
        if name == liar:
            processes.start(name, conduct, *words, program=(bad,))
        else:
            processes.start(name, *words)
    until(lambda: all((tmp_path / name / "status.json").exists() for name in names), seconds=PATIENCE)
    time.sleep(SECONDS)
    assert not any(process.poll() for process in processes.here.values())
    codes = processes.stop()
    assert set(codes.values()) == {0}
    together, apart = [], []
    for name in names[1:]:
        seen, unseen = frames[name]
        assert status(tmp_path / name)["messages_by"][liar] > 0  # it was heard
        unseen.to_csv(tmp_path / "new.csv", index=False)
        typed("peer", "predict", tmp_path / name, tmp_path / "new.csv", "-o", tmp_path / "out.csv")
        together.append(brier(pd.read_csv(tmp_path / "out.csv")["probability"].to_numpy(), unseen))
        model = make_pipeline(StandardScaler(), LogisticRegression()).fit(seen[["age", "dose"]], seen["ill"])
        apart.append(brier(model.predict_proba(unseen[["age", "dose"]])[:, 1], unseen))
    assert np.mean(together) <= most * np.mean(apart)
