"""
Real peers, one of them killed
==============================

The same method runs in a simulation and on real peers. Here six peers start on this
machine, each a process of its own with its own key, data and folder. They talk by mutual
TLS, without a coordinator. One of them is killed in the middle of it and started again.
``coterie lab`` does the same from the command line.

It needs the extra ``network``: ``pip install "coterie[network]"``.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

import coterie as ct
from coterie.testing import lab

# %%
# Each peer gets rows of a linear task (generated). The lab knows everybody's rows, so that
# it can compute the exact optimum to compare with; the peers know their own only.

task = lab.synthetic(6, features=5, seed=0)
times, gaps = [], []


def look(report):
    """Called every second: kills a peer after three seconds, and starts it after six."""
    times.append(report["seconds"])
    gaps.append(report["gap"])
    if report["seconds"] >= 3 and not group.log:
        group.kill(2)
    if report["seconds"] >= 6 and group.state(2) == "killed":
        group.start(2)


with (
    tempfile.TemporaryDirectory() as folder,
    lab.Lab(Path(folder) / "lab", task, **lab.charter_fields()) as group,
):
    group.start_all()
    report = lab.watch(group, seconds=120.0, seen=look)

# %%
# What was killed goes on from what it had saved, and all models come to the optimum.

figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
axes.semilogy(times, gaps, "o-", color=ct.plots.BLUE)
for moment, what in group.log:
    axes.axvline(moment, color=ct.plots.RED, ls=":")
    axes.text(
        moment + 0.1,
        0.96,
        what,
        color=ct.plots.RED,
        va="top",
        transform=axes.get_xaxis_transform(),
    )
axes.set(xlabel="seconds", ylabel="relative distance to the optimum")
axes.set_title("Six real peers reach the exact optimum, a crash included")
ct.plots.show(figure)

# %%
print(
    {row["name"]: row["state"] for row in report["peers"]}, [what for _, what in group.log]
)
assert report["reached"]  # a relative distance of 1e-6
assert [what for _, what in group.log] == ["killed p2", "started p2"]
