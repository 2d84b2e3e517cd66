"""
A PyTorch network with a head for each agent
============================================

Agents may learn any PyTorch module. Its parameters can be shared by all agents, tied over
the graph, or personal. Thirty agents of ten kinds have twenty rows each, too few to find
good features alone. All agents learn the body of the network together, and the agents of a
kind learn its head together. The data are generated.
"""

from collections import OrderedDict

import numpy as np

import coterie as ct

# %%
# Labels depend on two products of features, which no linear model can see, weighed by an
# angle that each kind has for itself.

rng = np.random.default_rng(0)
n = 30
kind = np.arange(n) % 10
angle = 2 * np.pi * kind / 10


def rows(count):
    """Rows and labels of all agents."""
    owner, X = np.repeat(np.arange(n), count), rng.normal(size=(n * count, 6))
    hidden = np.column_stack([X[:, 0] * X[:, 1], X[:, 2] * X[:, 3]])
    y = (
        hidden[:, 0] * np.cos(angle[owner]) + hidden[:, 1] * np.sin(angle[owner]) > 0
    ).astype(int)
    return ct.AgentData(X, y, agents=owner)


train, test = rows(20), rows(200)

# %%
# A network with a body and a head. If PyTorch is not installed, a compiled model of coterie
# with the same network is used.

try:
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)  # fastest for small modules
    layers = {
        "body": torch.nn.Linear(6, 16),
        "curve": torch.nn.Tanh(),
        "head": torch.nn.Linear(16, 2),
    }
    model = ct.models.Torch(
        torch.nn.Sequential(OrderedDict(layers)), torch.nn.functional.cross_entropy
    )
except ImportError:
    print(
        'no PyTorch here (pip install "coterie[torch]"): ct.models.TwoLayer takes its place'
    )
    model = ct.models.TwoLayer(6, 16, 2)

# %%
# All agents are connected, with strong edges inside a kind only. Five ways to use the same
# network:

same = (kind[:, None] == kind) & ~np.eye(n, dtype=bool)
everybody, of_a_kind = (
    ct.Graph(np.where(np.eye(n), 0.0, np.where(same, 1.0, 1e-3))),
    ct.Graph(same.astype(float)),
)
sgd = ct.optim.SGD(0.5, steps=5, batch=20)
ways = {
    "one model for all": (everybody, {}, ct.gossip.LocalSGD(sgd)),
    "each alone": (everybody, {"personal": ["body", "head"]}, ct.gossip.LocalSGD(sgd)),
    "common body, own heads": (everybody, {"personal": "head"}, ct.gossip.LocalSGD(sgd)),
    "one model for each kind": (of_a_kind, {}, ct.gossip.LocalSGD(sgd)),
    "common body, tied heads": (
        everybody,
        {"shared": "body", "tied": "head", "coupling": 0.2},
        ct.gossip.TiedSGD(sgd),
    ),
}
runs = {}
for name, (graph, parts, method) in ways.items():
    problem = ct.Problem.differentiable(train, graph, model, **parts)
    scores = ct.studies.Evaluator(problem, test).observers()
    runs[name] = ct.simulate(problem, method, rounds=80, every=5, seed=0, observe=scores)

# %%
figure = ct.plots.traces(
    runs, "accuracy", label="mean test accuracy", xlabel="wakes (30 agents: 30 in a round)"
)
figure.set_size_inches(7.4, 4.2)
figure.axes[0].set_title("A common body with tied heads is best")
ct.plots.label_lines(figure.axes[0])
ct.plots.show(figure)

# %%
last = {name: float(run.trace["accuracy"].iloc[-1]) for name, run in runs.items()}
print({name: round(score, 3) for name, score in last.items()})
assert max(last, key=last.get) == "common body, tied heads"
