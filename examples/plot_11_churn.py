"""
Agents that come and go
=======================

Nobody waits for anybody here, so agents may join and leave while the others go on
learning. This run has three groups of twenty: some are there all the time, some join
late, and some leave early. What happens to their models?
"""

import matplotlib.pyplot as plt
import numpy as np

import coterie as ct

# %%
# Sixty agents (generated) look for linear boundaries. Who is not there has no edges:
# ``graph.without``.

task = ct.datasets.linear_classification(n=60, p=10, rows=(5, 40), seed=0)
everybody = ct.Problem.personalized(task.train, task.graph)
stay, come, leave = np.arange(0, 20), np.arange(20, 40), np.arange(40, 60)
before = everybody.on(graph=task.graph.without(come))
after = everybody.on(graph=task.graph.without(leave))

# %%
# ``changes`` lists the moments. The models, and what neighbours know of each other, carry
# over. On top of that, each agent sleeps through a third of its wakes, and one message in
# ten is lost.

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
# Newcomers are as good as the others soon after they have come, and the others gain from
# them, too. Who leaves and goes on training alone, as here, loses what it had gained; it
# could have kept its model.

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
