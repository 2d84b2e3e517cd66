"""The demands: at all times, when the faults are over, and in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from coterie.data import AgentData
from coterie.engines.simulator import simulate
from coterie.engines.wire import encode, read_numbers
from coterie.graphs import Graph
from coterie.peers.model.tables import problem_of
from coterie.peers.node.node import Node
from coterie.peers.wire.packet import Packet

from .tasks import NOISE, TASKS

if TYPE_CHECKING:
    from .simulated import Chaos

#: Among liars: maximal ratio of the mean squared error of all honest members to the larger of their errors alone and
#: among honest members only; and the maximal ratio for one member, whose error may be a third larger.
WORSE_ALL, WORSE_ONE = 4.0 / 3.0, 16.0 / 9.0
#: Wakes of each member after which pooling has settled.
HONEST_WAKES = 60


def of_releases(chaos: Chaos, i: int, packet: Packet) -> None:
    """Demand that no budget is exceeded, and that each release is made once, however often it is sent."""
    ledger = chaos.ledgers[i]
    if ledger is None:
        return
    chaos.demand(ledger.releases <= chaos.method.plan.steps, f"peer {i} has made {ledger.releases} releases")
    if chaos.task == "private" and packet.kind >= 0:
        # Descent publishes only its model: the initial one, and one for each release.
        chaos.kept[i] |= set(ledger.kept)
        text = read_numbers(packet.content)
        known = not text.any() or encode(i, packet.kind, text) in chaos.kept[i]
        chaos.demand(known, f"peer {i} publishes a model that belongs to no release")
        chaos.demand(len(chaos.kept[i]) <= ledger.releases, f"peer {i} has made a release twice")


def missing(chaos: Chaos, began: float) -> str:
    """Return the first demand that is not met yet, or an empty text."""
    for name, fault in chaos.faults.items():
        if not fault.over:
            return f"the fault {name!r} is not over"
    mute = _muted(chaos, began)
    if mute:
        return mute
    task = TASKS[chaos.task]
    if np.isfinite(task.accuracy):
        found = gap(chaos)
        if not found <= task.accuracy:
            return f"stays {found:.2e} from the optimum"
    return _worse_than_alone(chaos) if task.resists else ""


def _here(chaos: Chaos) -> dict[int, Node]:
    return {i: node for i in sorted(chaos.present) if (node := chaos.nodes[i]) is not None}


def _muted(chaos: Chaos, began: float) -> str:
    """Return the members that have not heard a neighbour since the faults ended."""
    here = _here(chaos)
    for i, node in here.items():
        for j in node.edges:
            if j in here and node.fresh.heard.get(j, -np.inf) < chaos.clock(i, began):
                return f"{i} has not heard {j} since the faults were over"
    return ""


def gap(chaos: Chaos) -> float:
    """Return the relative distance of the present members' objective from the optimum."""
    here = _here(chaos)
    members, nodes = list(here), list(here.values())
    if len(nodes) < len(chaos.present) or any(node.group.roster.version != chaos.roster.version for node in nodes):
        return np.inf
    W = np.zeros((len(here), len(here)))
    for k, node in enumerate(nodes):
        for j, weight in node.edges.items():
            if j not in here:
                return np.inf
            W[k, members.index(j)] = weight
    if not np.array_equal(W, W.T):
        return np.inf  # the two ends of an edge do not agree yet
    charter = chaos.charter
    if charter.confidence == "gossip":
        largest = max(node.largest for node in nodes)  # over all members that were ever present
        if any(node.largest != largest for node in nodes):
            return np.inf
        charter = msgspec.structs.replace(charter, confidence="public", max_rows=largest)
    problem = problem_of(charter, _data(chaos, members), Graph(W))
    best = problem.value(problem.solve())
    theta = np.array([node.theta for node in nodes])
    return float((problem.value(theta) - best) / max(1.0, abs(best)))


def _data(chaos: Chaos, members: list[int]) -> AgentData:
    owner = np.repeat(np.arange(len(members)), [len(chaos.rows.X[i]) for i in members])
    X, y = (np.concatenate([part[i] for i in members]) for part in (chaos.rows.X, chaos.rows.y))
    return AgentData(X, y, agents=owner, members=range(len(members)))


def errors(chaos: Chaos) -> dict[int, tuple[float, float, float]]:
    """Return the honest members' mean squared errors on new rows: now; alone; and as if there were no liars."""
    here = {i: node for i, node in _here(chaos).items() if i not in chaos.liars}
    members = list(here)
    W = np.ones((len(members), len(members))) - np.eye(len(members))
    problem = problem_of(msgspec.structs.replace(chaos.charter, trim=0.0), _data(chaos, members), Graph(W))
    if chaos.charter.method.endswith("pooling"):
        honest = simulate(problem, chaos.method, wakes=HONEST_WAKES * len(members)).theta
    else:
        honest = problem.solve()

    def error(theta: np.ndarray, i: int) -> float:
        truth = np.zeros(theta.shape)  # without an intercept
        truth[: chaos.rows.models.shape[1]] = chaos.rows.models[i]
        return float(np.sum((theta - truth) ** 2) + NOISE**2)

    return {
        i: (error(node.theta, i), error(node.work.local, i), error(best, i))
        for (i, node), best in zip(here.items(), honest, strict=True)
    }


def _worse_than_alone(chaos: Chaos) -> str:
    found = errors(chaos)
    now, alone, honest = np.array(list(found.values())).T
    if not now.mean() <= WORSE_ALL * max(alone.mean(), honest.mean()):
        return f"among liars the error is {now.mean():.4f}; alone {alone.mean():.4f}, without them {honest.mean():.4f}"
    for i, (now_i, alone_i, honest_i) in found.items():
        if not now_i <= WORSE_ONE * max(alone_i, honest_i):
            return f"{i} has an error of {now_i:.4f} among liars; alone {alone_i:.4f}, without them {honest_i:.4f}"
    return ""


def of_the_end(chaos: Chaos) -> None:
    """Demand that all members have heard what was published. Private peers do not reach the optimum."""
    if chaos.charter.privacy is None:
        return
    for i, node in _here(chaos).items():
        ledger = chaos.ledgers[i]
        if ledger is None:
            continue
        chaos.demand(ledger.releases <= chaos.method.plan.steps, f"peer {i} has spent {ledger.releases} releases")
        if chaos.task == "private" and node.edges:
            chaos.demand(ledger.exhausted, f"peer {i} has made {ledger.releases} releases only")
            for slot, j in enumerate(node.peer.arrays.peer):
                other = chaos.nodes[int(j)]
                same = other is not None and np.array_equal(node.peer.edge.copy[slot], other.theta)
                chaos.demand(same, f"{i} has not heard what {j} published")
