"""Members that mean harm: what a default group of real processes loses to them, before, during and after."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path

from network_parts import PYTHON, cpu, free_ports, fresh, start, stop, until_linked

FEATURES, CLASSES = ["age", "dose"], ["no", "yes"]
ROWS, TEST = 40, 400
#: Wakes a second: as fast as a default group learns in so little time. Everything else is as by default.
RATE = 5.0
LIES = ("opposite", "shift", "moderate")


def write_rows(path, person, count, seed):
    """Return rows with ages and doses in natural units; the effects of both differ slightly between persons."""
    import numpy as np

    own, rng = np.random.default_rng(person), np.random.default_rng(seed)
    age, dose = rng.uniform(20.0, 80.0, count), rng.uniform(0.0, 500.0, count)
    slopes = np.array([-1.2, 2.0]) + 0.4 * own.normal(size=2)
    margin = slopes[0] * (age - 50.0) / 17.0 + slopes[1] * (dose - 250.0) / 144.0 + 0.4 * own.normal()
    well = rng.uniform(size=count) < 1.0 / (1.0 + np.exp(-margin))
    lines = [f"{a:.1f},{d:.1f},{CLASSES[int(w)]}" for a, d, w in zip(age, dose, well, strict=True)]
    path.write_text("age,dose,well\n" + "\n".join(lines) + "\n")


def found_default(folder, n):
    """Return a default group of n peers on a complete graph, with training rows and test rows."""
    from coterie.peers.group import groups
    from coterie.peers.model.tables import work_of_table
    from coterie.peers.model.work import write_work

    charter = groups.create(
        folder / "group", title="benchmark", features=FEATURES, target="well", labels=CLASSES, rate=RATE
    )
    new = [
        groups.Newcomer(folder / f"p{k}", f"p{k}", f"127.0.0.1:{port}", {f"p{j}": 1.0 for j in range(k)})
        for k, port in enumerate(free_ports(n))
    ]
    groups.enroll_all(folder / "group", new, durable=False)
    for k in range(n):
        home = folder / f"p{k}"
        write_rows(home / "rows.csv", k, ROWS, 100 + k)
        write_rows(home / "test.csv", k, TEST, 200 + k)
        (home / "work").touch(0o600)
        (home / "work").write_bytes(write_work(work_of_table(charter, home / "rows.csv")))


def log_losses(home):
    """Return the scores on test rows of the model that a peer serves, and of the model that it has trained alone."""
    import csv
    import json

    import numpy as np

    from coterie.peers.model.model import predict_file

    def judged(folder):
        predict_file(folder, home / "test.csv", folder / "said.csv")
        with open(home / "test.csv") as truth, open(folder / "said.csv") as said:
            well = np.array([row["well"] == "yes" for row in csv.DictReader(truth)])
            p = np.clip([float(row["probability"]) for row in csv.DictReader(said)], 1e-6, 1 - 1e-6)
        return float(-np.log(np.where(well, p, 1.0 - p)).mean())

    model = json.loads((home / "model.json").read_bytes())
    with tempfile.TemporaryDirectory() as name:
        other = Path(name)
        (other / "charter.json").write_bytes((home / "charter.json").read_bytes())
        (other / "model.json").write_text(json.dumps(model | {"theta": model["alone"], "covariance": None}))
        return judged(home), judged(other), model["served"]


def siege(n, bad, conducts, seconds, add):
    """One group after the other is told lies by its last members; ``add`` takes a row."""
    with tempfile.TemporaryDirectory() as name:
        folder, honest = Path(name), range(n - bad)
        found_default(folder, n)
        villains = [folder / f"p{k}" for k in range(n - bad, n)]
        good = [start(folder / f"p{k}", "--lab") for k in honest]
        others = [start(home, "--lab") for home in villains]

        def phase(group, what, wait):
            time.sleep(wait)
            then, used, before = time.monotonic(), cpu(good[0].pid), fresh(folder, 0, good[0])
            time.sleep(seconds)
            now, took = fresh(folder, 0, good[0]), time.monotonic() - then
            used = (cpu(good[0].pid) - used) / took
            served, alone, how = zip(*(log_losses(folder / f"p{k}") for k in honest), strict=True)
            refused = {}
            for home in villains:
                old = before["refused_by"].get(home.name, {})
                for reason, count in now["refused_by"].get(home.name, {}).items():
                    if count > old.get(reason, 0):
                        refused[reason] = refused.get(reason, 0) + count - old.get(reason, 0)
            add({
                "group": group, "phase": what, "loss": sum(served) / len(served), "worst": max(served),
                "alone": sum(alone) / len(alone), "served_alone": sum(one == "alone" for one in how),
                "messages": (now["messages_in"] - before["messages_in"]) / took, "refused": refused, "cpu": used,
            })  # fmt: skip

        try:
            until_linked(folder, range(n))
            title = f"{bad} of {n}"
            phase(title, "before", 2.0 * seconds)
            for conduct in conducts:
                stop(others)
                command = [PYTHON, str(Path(__file__).parents[1] / "tests" / "peers" / "bad_members.py")]
                environment = os.environ | {"COTERIE_PLAIN": "1"}
                others = []
                for home in villains:
                    with open(home / "log", "ab") as log:
                        words = [*command, str(home), conduct, "--data", str(home / "rows.csv")]
                        others.append(subprocess.Popen(words, stderr=log, env=environment))
                phase(title, conduct, 4.0 + seconds)
                stop(others)
                others = [start(home, "--lab") for home in villains]
                phase(title, "after", seconds)
        finally:
            stop([*good, *others])


def bad_members(quick, console):
    """One row for each phase."""
    from rich.table import Table

    rows = []
    table = Table(title=f"Default groups, rate {RATE:g}; log-loss of the honest on {TEST} rows each that nobody learns")
    for column in ("bad", "phase", "mean", "worst", "alone", "serve alone", "messages/s", "CPU, cores", "refused"):
        table.add_column(column, justify="left" if column in ("bad", "phase", "refused") else "right")

    def add(row):
        rows.append(row)
        refused = ", ".join(f"{reason} {count}" for reason, count in sorted(row["refused"].items()))
        losses = [f"{row[what]:.3f}" for what in ("loss", "worst", "alone")]
        numbers = [str(row["served_alone"]), f"{row['messages']:.0f}", f"{row['cpu']:.2f}"]
        table.add_row(row["group"], row["phase"], *losses, *numbers, refused)

    if quick:
        siege(8, 1, ("opposite", "flood"), 3.0, add)
    else:
        siege(8, 1, (*LIES, "flood", "replay", "huge"), 5.0, add)
        siege(10, 2, LIES, 5.0, add)
    console.print(table)
    return rows
