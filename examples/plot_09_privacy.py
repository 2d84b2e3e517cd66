"""
The price of privacy
====================

Models reveal information about their training data. ``ct.Private`` makes all messages of an
agent differentially private, for each of its examples. The smaller epsilon is, the stronger
the guarantee, and the more noise is needed. How much accuracy does privacy cost, and is
collaboration still worthwhile?
"""

import matplotlib.pyplot as plt
import numpy as np

import coterie as ct

# %%
# A hundred agents look for linear boundaries in twenty dimensions, with 10 to 100 examples
# each (generated, three times). The graph connects agents with similar boundaries. Delta,
# the probability that the guarantee may fail, is far below one over the number of examples.

epsilons, delta = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0], 1e-5
alone, clear, private = [], [], []
for seed in range(3):
    task = ct.datasets.linear_classification(n=100, p=20, seed=seed)
    problem = ct.Problem.personalized(task.train, task.graph)
    alone.append(task.accuracy(problem.local()).mean())
    clear.append(task.accuracy(problem.solve()).mean())
    runs = (
        ct.simulate(
            problem,
            ct.Private(ct.ModelPropagation(), epsilon, delta),
            wakes=2_000,
            seed=seed,
        )
        for epsilon in epsilons
    )
    private.append([task.accuracy(run.theta).mean() for run in runs])

# %%
# At the end, an agent trains once more on its own rows, for its own use, which costs no
# privacy. So its accuracy stays near that of a model trained alone, even for a very strong
# guarantee. It may be slightly lower, because the messages are then mostly noise.

private = np.array(private)
figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
axes.axhline(np.mean(clear), color=ct.plots.COLOURS[2], ls="--", label="not private")
axes.axhline(np.mean(alone), color=ct.plots.COLOURS[1], ls="--", label="alone")
axes.plot(epsilons, private.mean(axis=0), "o-", color=ct.plots.COLOURS[0], label="private")
axes.fill_between(
    epsilons,
    private.min(axis=0),
    private.max(axis=0),
    color=ct.plots.COLOURS[0],
    alpha=0.15,
    lw=0,
)
axes.set(
    xscale="log", xlabel="epsilon (smaller: more private)", ylabel="mean test accuracy"
)
axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
axes.minorticks_off()
axes.set_title("At epsilon 1, two fifths of the gain are left")
ct.plots.label_lines(axes)
ct.plots.show(figure)

# %%
kept = (private.mean(axis=0) - np.mean(alone)) / (np.mean(clear) - np.mean(alone))
print(
    "share of the gain that is kept:",
    dict(zip(epsilons, kept.round(2).tolist(), strict=True)),
)
assert 0.3 < kept[epsilons.index(1.0)] < 0.5
assert kept[epsilons.index(5.0)] > 0.8
assert (np.diff(private.mean(axis=0)) > -0.01).all()  # less privacy, more accuracy
assert kept.min() > -0.2  # hardly worse than alone, even at 0.1
