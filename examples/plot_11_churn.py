"""
Agents that come and go
=======================

Asynchronous agents do not wait for each other, so agents may join and leave while the
others continue to learn. This run has three groups of twenty: one is present all the time,
one joins late, and one leaves early. What happens to their models?
"""

import matplotlib.pyplot as plt
import numpy as np

import coterie as ct

# %%
# Sixty agents (generated) look for linear boundaries. Absent agents have no edges, see
# ``graph.without``.

task = ct.datasets.linear_classification(n=60, p=10, rows=(5, 40), seed=0)
everybody = ct.Problem.personalized(task.train, task.graph)
stay, come, leave = np.arange(0, 20), np.arange(20, 40), np.arange(40, 60)
before = everybody.on(graph=task.graph.without(come))
after = everybody.on(graph=task.graph.without(leave))

# %%
# ``changes`` lists the times of the changes. Models, and the copies of neighbours' models,
# are kept. In addition, each agent skips a third of its wakes, and one message in ten is
# lost.

groups = {"leave": leave, "stay": stay, "come": come}
observe = {
    name: lambda theta, who=who: task.accuracy(theta)[who].mean()
    for name, who in groups.items()
}
run = ct.simulate(
    before,
    "cd",
    wakes=6_000,
    changes=[(2_000, everybody), (4_000, after)],
    conditions=ct.Conditions(participation=2 / 3, loss=0.1),
    start="local",
    seed=0,
    every=60,
    observe=observe,
)

# %%
# New agents are as good as the others soon after they have joined, and the others gain from
# them, too. Agents that leave and continue to train alone, as here, lose what they had
# gained; they could have kept their models.

figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
for (name, _), color in zip(groups.items(), ct.plots.COLOURS[1:4], strict=True):
    axes.plot(run.trace["wakes"], run.trace[name], color=color, label=f"agents that {name}")
for moment, text in ((2_000, "20 come"), (4_000, "20 leave")):
    axes.axvline(moment, color=ct.plots.GREY, ls=":")
    axes.text(moment + 60, 0.02, text, color="black", transform=axes.get_xaxis_transform())
axes.set(
    xlabel="wakes of all agents",
    ylabel="mean test accuracy",
    title="Newcomers catch up; who goes on alone falls back",
)
ct.plots.label_lines(axes)
ct.plots.show(figure)

# %%
late = run.trace[run.trace["wakes"].between(3_000, 4_000)].mean()
early = run.trace[run.trace["wakes"] < 2_000].mean()
print(
    late[list(groups)].round(3).to_dict(),
    "before the newcomers joined:",
    early[list(groups)].round(3).to_dict(),
)
print(f"{run.lost} messages lost")
assert late["come"] > early["come"] + 0.05
assert run.trace["leave"].iloc[-1] < late["leave"] - 0.05
