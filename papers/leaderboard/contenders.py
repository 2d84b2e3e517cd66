"""Methods that train by gradient steps, in the form that the leaderboard asks for.

Every one has the same budget: so many rounds, steps and rows of a minibatch. Its learning rate, how strongly it draws
models together, and the round to stop at are what is best on a third of the training rows that is held out.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

import coterie as ct
from coterie.data import AgentData
from coterie.datasets import RealTask
from coterie.datasets.real import agent_scores
from coterie.engines.wire import messages_size
from coterie.errors import ConvergenceError
from coterie.graphs import Graph

from .._experiment import held_out

#: Steps and rows of a minibatch, of each agent in each round; the round at which it stops is a multiple of LOOK.
STEPS, BATCH, LOOK = 5, 16, 10
#: Learning rates, the same for all.
RATES = (0.003, 0.01, 0.03, 0.1, 0.3)
#: How strongly models are drawn together, of methods that have such a parameter.
STRENGTHS = (0.01, 0.1, 1.0)
#: Units of the hidden layer.
HIDDEN = 16
#: Neighbours of an agent where it does not matter who they are, and where they are those with the nearest models.
DEGREE, NEAREST = 6, 5


@dataclass(frozen=True)
class Contender:
    """A method that trains: its name in coterie, and its graph."""

    method: str
    #: "nobody"; "one": all rows are in one place; "server"; "anybody": a random graph; "given" or "knn": those who are
    #: alike by what is known of them, or by linear models that they train alone.
    place: str
    #: The parameter to be tuned beside the learning rate, and its values; "coupling" is one of the problem.
    tuned: str = ""
    values: tuple[float, ...] = (0.0,)
    #: What becomes of parts of a network; a linear model has no parts.
    roles: Mapping[str, str] = field(default_factory=dict)
    models: tuple[str, ...] = ("linear", "network")
    options: Mapping[str, Any] = field(default_factory=dict)
    steps: int = STEPS
    batch: int = BATCH


#: What becomes of the two parts of a network.
HEAD_PERSONAL = {"personal": "head"}
HEAD_TIED = {"tied": "head", "shared": "body"}
#: Steps are shared out where a method trains a model in two stages, or many times a round; Ditto and APFL train two
#: models, with all steps each.
CONTENDERS: dict[str, Contender] = {
    "alone": Contender("DPSGD", "nobody"),
    "one for all": Contender("DPSGD", "one"),
    "FedAvg": Contender("FedAvg", "server"),
    "tied SGD, given": Contender("TiedSGD", "given", "coupling", STRENGTHS, HEAD_TIED),
    "tied SGD, k-NN": Contender("TiedSGD", "knn", "coupling", STRENGTHS, HEAD_TIED),
    "local SGD": Contender("LocalSGD", "anybody"),
    "D-PSGD": Contender("DPSGD", "anybody"),
    "Ditto": Contender("Ditto", "server", "pull", STRENGTHS),
    "FedPer": Contender("FedPer", "server", roles=HEAD_PERSONAL, models=("network",)),
    "FedRep": Contender("FedRep", "server", "body_steps", (1, 2), roles=HEAD_PERSONAL, models=("network",), steps=3),
    "IFCA": Contender("IFCA", "server", "clusters", (2, 3)),
    "APFL": Contender("APFL", "server", "alpha", (0.25, 0.5, 0.75)),
    "pFedMe": Contender("PFedMe", "server", "pull", (1.0, 5.0, 15.0), steps=1, options={"rate": 0.05}),
    "FedProx": Contender("FedProx", "server", "mu", STRENGTHS),
    "SCAFFOLD": Contender("SCAFFOLD", "server"),
    "push-sum": Contender("PushSum", "anybody"),
    "gradient tracking": Contender("GradientTracking", "anybody", steps=1, batch=STEPS * BATCH),
}


@dataclass(frozen=True)
class Race:
    """Rows to train on and to be judged by, in units in which all methods start alike."""

    train: AgentData
    test: AgentData
    kind: str
    graph: Graph
    model: str
    shift: float = 0.0
    scale: float = 1.0

    @classmethod
    def of(cls, task: RealTask, graph: Graph, model: str) -> Race:
        """A dataset for linear models, with an intercept, or for networks; numbers get mean 0 and variance 1."""
        train, test = task.train, task.test
        y = np.asarray(train.y)
        shift, scale = (0.0, 1.0) if task.kind == "classification" else (float(y.mean()), float(y.std()))
        if task.kind == "regression":
            train = _labelled(train, (y - shift) / scale)
        elif model == "network":
            train = _labelled(train, (y > 0) * 1.0)
        if model == "linear":
            train, test = train.append_column(), test.append_column()
        return cls(train, test, task.kind, graph, model, shift, scale)

    def held_out(self) -> Race:
        """The same with a third of everybody's training rows to be judged by."""
        classes = self.kind == "classification"
        train, test = held_out(self.train, 0, by_class=classes)
        y = np.asarray(test.y)
        labels = np.where(y > 0, 1.0, -1.0) if classes else y * self.scale + self.shift
        return Race(train, _labelled(test, labels), self.kind, self.graph, self.model, self.shift, self.scale)

    @property
    def rule(self) -> Any:
        """The model, or the loss of a linear one."""
        classes = self.kind == "classification"
        if self.model == "network":
            return ct.models.TwoLayer(self.train.p, HIDDEN, 2 if classes else 1)
        return "logistic" if classes else "squared"

    def initial(self, seed: int) -> np.ndarray:
        """Parameters that all begin with."""
        return self.rule.initial(seed) if self.model == "network" else np.zeros(self.train.p)

    def scores(self, theta: np.ndarray) -> np.ndarray:
        """Return accuracy or error of each agent's model on its own rows; NaN without rows, or if training diverged."""
        if not np.isfinite(theta).all():
            return np.full(self.test.n, np.nan)
        X, start = self.test.X, self.test.start
        if self.model == "linear":
            said = np.sum(X * theta[self.test.owner], axis=1)
        else:
            rule = self.rule
            said = np.concatenate([rule.predict(theta[k], X[start[k] : start[k + 1]]) for k in range(self.test.n)])
            said = said if said.ndim == 1 else said[:, 1] - said[:, 0]
        found = np.where(said > 0.0, 1.0, -1.0) if self.kind == "classification" else said * self.scale + self.shift
        return agent_scores(self.test, found, self.kind)

    def goodness(self, theta: np.ndarray) -> float:
        """The mean score of agents that have one: the more, the better."""
        scores = self.scores(theta)
        found = scores[self.test.sizes > 0].mean()
        return float("-inf") if np.isnan(found) else float(found if self.kind == "classification" else -found)


def _labelled(data: AgentData, y: np.ndarray) -> AgentData:
    """Return the data with other labels, given in the order in which rows are stored."""
    return AgentData.of_codes(data.X, y, data.owner, data.members)


def trained(race: Race, name: str, rate: float, value: float, rounds: int, seed: int, watch: bool = False) -> Any:
    """A run of a contender. If it is watched, its trace has a column "goodness"."""
    who = CONTENDERS[name]
    data, n = race.train, race.train.n
    one = who.place == "one"
    if one:  # as many gradients as all the others take together
        data = AgentData(data.X, data.y, agents=np.zeros(data.n_rows, dtype=int))
    options: dict[str, Any] = dict(who.roles) if race.model == "network" else {}
    if who.place == "server":
        problem = ct.Problem.federated(data, race.rule, **options)
    else:
        graph = neighbours(race, who.place) if not one else ct.graphs.empty(1)
        if who.tuned == "coupling":  # of all edges of an agent together
            options["coupling"] = value / max(graph.degrees.mean(), 1e-9)
        problem = ct.Problem.differentiable(data, graph, race.rule, **options)
    local = ct.optim.SGD(rate, steps=who.steps * (n if one else 1), batch=who.batch)
    tuned = {who.tuned: value} if who.tuned not in ("", "coupling") else {}
    room = ct.federated if who.method in ct.federated.__all__ else ct.gossip
    method = getattr(room, who.method)(local, **tuned, **who.options)
    start = np.tile(race.initial(seed), (problem.n, 1))
    watched: dict[str, Any] = {}
    if watch:
        watched = {"observe": {"goodness": lambda theta: race.goodness(everybody(theta, n))}, "every": LOOK}
    with np.errstate(all="ignore"):  # too high a rate
        return ct.simulate(problem, method, rounds=rounds, seed=seed, start=start, **watched)


def everybody(theta: np.ndarray, n: int) -> np.ndarray:
    """Return the models of n agents from those of a run: without the server's, and with a common model repeated."""
    return np.broadcast_to(theta, (n, theta.shape[1])) if len(theta) == 1 else theta[len(theta) - n :]


def neighbours(race: Race, place: str) -> Graph:
    n = race.train.n
    if place == "nobody":
        return ct.graphs.empty(n)
    if place == "anybody":
        return ct.graphs.random_regular(n, DEGREE, seed=0) if n > DEGREE + 1 else ct.graphs.complete(n)
    if place == "given":
        return race.graph
    return ct.graphs.knn(_alone(race), min(NEAREST, n - 1))


def _alone(race: Race) -> np.ndarray:
    """Return the linear models of all agents, trained alone."""
    data = race.train if race.model == "linear" else race.train.append_column()
    loss = "squared"
    if race.kind == "classification":
        loss, data = "logistic", _labelled(data, np.where(np.asarray(data.y) > 0, 1.0, -1.0))
    return ct.Problem.personalized(data, ct.graphs.empty(data.n), loss=loss).local()


def tuned(race: Race, name: str, rounds: int) -> dict[str, Any]:
    """Learning rate, strength and rounds that are best on rows held out; of equal ones the first."""
    part, who, best = race.held_out(), CONTENDERS[name], {"goodness": float("-inf"), "rounds": LOOK}
    for value, rate in product(who.values, RATES):
        try:
            trace = trained(part, name, rate, value, rounds, seed=0, watch=True).trace
        except ConvergenceError:  # too high a rate
            continue
        trace = trace[trace["time"] > 0]
        place = trace["goodness"].to_numpy().argmax()
        if (found := float(trace["goodness"].iloc[place])) > best["goodness"]:
            best = {"goodness": found, "rounds": int(trace["time"].iloc[place]), "rate": rate, "value": value}
    return best


def raced(race: Race, name: str, chosen: Mapping[str, Any], seeds: int) -> dict[str, Any]:
    """Scores of all agents, means over seeds, after training on all rows; bytes and CPU seconds of one run."""
    settings = name, chosen["rate"], chosen["value"]
    trained(race, *settings, 1, 0)  # compiled before it is timed
    start = time.process_time()
    runs = [trained(race, *settings, chosen["rounds"], seed) for seed in range(seeds)]
    seconds = (time.process_time() - start) / seeds
    n, search = race.train.n, 0
    if CONTENDERS[name].place == "knn":  # somebody has to see the models of all
        search = messages_size(n * (n - 1), n * (n - 1) * (race.train.p + (race.model == "network")))
    scores = np.mean([race.scores(everybody(run.theta, n)) for run in runs], axis=0)
    sent = None if CONTENDERS[name].place == "one" else int(np.mean([run.bytes for run in runs])) + search
    return {"scores": scores, "bytes": sent, "cpu seconds": seconds}
