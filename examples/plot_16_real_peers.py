"""
Real peers, one of them killed
==============================

Methods run unchanged in simulations and on real peers. Here six peers start on this
machine, each in a process with its own key, data and folder. Peers communicate by mutual
TLS, without a coordinator. One peer is killed during the run and started again. The command
``coterie lab`` runs such a group, too.

It needs the extra ``network``: ``pip install "coterie[network]"``.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

import coterie as ct
from coterie.peers import lab

# %%
# Each peer gets rows of a linear task (generated). The lab holds the rows of all peers, in
# order to compute the exact optimum; a peer only has its own rows.

task = lab.synthetic(6, features=5, seed=0)
times, gaps = [], []


def look(report):
    """Kill a peer after three seconds, and start it after six; called every second."""
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
# The killed peer continues from its saved state, and all models converge to the optimum.

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
