"""
Late, lost and doubled messages
===============================

Real networks lose messages, delay messages, and deliver some messages twice. Does learning
still converge to the same models? Four networks are compared by the distance to the exact
optimum, on the same problem and with the same method.
"""

import coterie as ct

# %%
# Fifty agents (generated) learn by coordinate descent. The optimum, and so the distance to
# the optimum, is known exactly.

task = ct.datasets.linear_classification(n=50, p=10, seed=0)
problem = ct.Problem.personalized(task.train, task.graph, loss=ct.Logistic())
best = problem.value(problem.solve())


def distance(theta):
    """Relative distance of the objective to its minimum."""
    return (problem.value(theta) - best) / best


# %%
# Latency is in units of the mean time between two wakes of an agent: with 5.0, a message is
# five wakes old on arrival.

networks = {
    "perfect": None,
    "every second message lost": ct.Conditions(loss=0.5),
    "messages late by five wakes": ct.Conditions(latency=5.0, jitter=1.0),
    "all of it, and doubled": ct.Conditions(
        latency=5.0, jitter=1.0, loss=0.5, duplication=0.2
    ),
}
runs = {
    name: ct.simulate(
        problem,
        "cd",
        wakes=10_000,
        every=250,
        seed=0,
        observe={"distance": distance},
        conditions=conditions,
    )
    for name, conditions in networks.items()
}

# %%
# Bad networks slow learning down, but all four runs converge to the same optimum.

figure = ct.plots.traces(
    runs, "distance", label="relative distance to the optimum", xlabel="wakes of all agents"
)
figure.axes[0].set(yscale="log", title="Bad networks cost time, not accuracy")
figure.set_size_inches(7.2, 4.2)
ct.plots.label_lines(figure.axes[0])
ct.plots.show(figure)

# %%
print({name: f"{run.trace['distance'].iloc[-1]:.1e}" for name, run in runs.items()})
assert all(run.trace["distance"].iloc[-1] < 1e-3 for run in runs.values())
assert (
    runs["perfect"].trace["distance"].iloc[-1]
    < runs["all of it, and doubled"].trace["distance"].iloc[-1]
)
