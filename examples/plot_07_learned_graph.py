"""
A collaboration graph that agents learn
=======================================

A hundred users look for a boundary between two classes, with 3 to 15 rows each.
Boundaries come in four kinds, and the kind of each user is unknown. The users learn their
models and the graph of their neighbours at the same time (DADA: Zantedeschi,
Bellet, Tommasi, 2020). The data are generated: two moons, rotated by an angle that
depends on the cluster.
"""

import coterie as ct

# %%
# Models are combinations of 200 decision stumps. The problem starts from a graph without
# edges.

task = ct.datasets.clustered_moons(seed=0)
n = task.train.n
alone = ct.Problem.boosting(
    task.train, ct.graphs.empty(n), base=ct.Stumps(200), mu=1.0, beta=3.0
)

# %%
# Two runs: on the graph of an oracle, with edges between users of the same cluster, and on
# the graph that the users learn, updated every 100 wakes.

method, scores = (
    ct.FrankWolfeBoosting(),
    ct.studies.Evaluator(alone, task.test, alone=False).observers(),
)
settings = {
    "wakes": 100 * n,
    "every": 2 * n,
    "seed": 0,
    "start": "zeros",
    "observe": scores,
}
learned = ct.simulate(
    alone, ct.Learned(method, ct.GraphRule(lam=1.0), every=100), **settings
)
oracle = ct.simulate(alone.on(graph=task.graph), method, **settings)

# %%
# The learned graph is most of the way from learning alone to the oracle.

baselines = {
    "alone": alone.local(),
    "one model for all": ct.baselines.GlobalModel().models(alone),
}
levels = {
    name: ct.evaluate(models, alone, task.test).mean for name, models in baselines.items()
}
title = "Users who find their peers beat users alone"
runs = {"true clusters": oracle, "learned graph": learned}
figure = ct.plots.traces(
    runs, "accuracy", levels=levels, label="mean test accuracy", title=title
)
ct.plots.label_lines(figure.axes[0])
ct.plots.show(figure)

# %%
# The learned graph. A disc is a user; its colour is the true cluster, which the method does
# not know.

# sphinx_gallery_thumbnail_number = 2
i, j, weight = learned.graph.edges()
inside = weight[task.cluster[i] == task.cluster[j]].sum() / weight.sum()
title = f"{inside:.0%} of the weight is inside the true clusters (by chance: 29 %)"
figure = ct.plots.edges(learned.graph, cluster=task.cluster, title=title)
ct.plots.show(figure)

# %%
last = {name: float(run.trace["accuracy"].iloc[-1]) for name, run in runs.items()}
print({name: round(score, 3) for name, score in {**levels, **last}.items()})
assert max(levels.values()) < last["learned graph"] < last["true clusters"]
assert inside > 0.5
