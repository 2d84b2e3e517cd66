"""A method whose agents also learn the graph: ``Learned(method, rule)``.

The handlers of the method run unchanged. In addition, an agent regularly asks kappa random peers for their model,
degree and loss, computes the weights of its edges to these peers, and sends the weights (DADA, Section 4). A new
neighbour receives the method's greeting; an edge whose weight becomes zero is removed at both ends.

The two ends of an edge may change its weight at the same time, and messages may be late or lost. Each weight therefore
has a stamp: ``2 (number of changes) + (1 if the lower address made the last change)``. An agent that receives a greater
stamp adopts the weight; an agent that receives a smaller one answers with its own. So the ends agree after the next
message between them, and an agent's degree is always the sum of the weights that it stores.

=============================  =====================================================
paper                          here
=============================  =====================================================
K, the sampled peers           ``me.block[:, PEER]``
w_kl                           ``data.weight[slot]`` with ``data.peer[slot] == l``
d_l(w)                         ``me.block[:, OTHERS]``, without w_kl
c_k L_k                        ``own_cost(...)``, see :class:`PlainLoss`
z_kl                           ``me.block[:, COST]``
=============================  =====================================================
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._checks import positive
from ...errors import MismatchError, ParameterError
from ..arrays import EVERYONE, NEEDS_ROOM, TAIL, VACANT, Message, Randomness, loss_of, send, slot_of
from ..compile import inline, noinline
from ..linear import are_pairs, copy_to, read_pairs, total, write_pairs
from ..messages import Counter, Loss, Number, Pairs, Vector
from ..method import NamedTuple, can_open, method
from ..methods import check_fit, resolve_method
from ..rules import made_by
from ..rules import rule as as_rule
from . import parts
from .graph_objective import edge_cost
from .graph_rule import AUTO, MAX_WEIGHT, GraphRule, better
from .robust import Robust
from .sampling import SHUFFLE, SHUFFLED, resolve_sampler

#: Kinds of messages: a request for the data that an edge's weight depends on, its answer, and the weight of an edge;
#: then the sampler's kinds; and from OFFSET on, the method's kinds.
ASK, ANSWER, WEIGHT, OFFSET = 0, 1, 2, SHUFFLED + 1
#: Numbers in a message. Each message begins with an edge as the sender knows it: weight, stamp, and squared distance of
#: the models when the weight was last computed. A request also has the number of its round; an answer has that number,
#: degree, loss and model.
WEIGHT_LENGTH, ASK_LENGTH, ANSWER_LENGTH = 3, 4, 6
#: A number that is not counted as information: the round of a request.
UNCOUNTED = Number(counted=False)
#: Entries of ``block`` for each peer that the agent has asked.
PEER, STAMP, OTHERS, COST, SQUARE, NEW, ANSWERED, BLOCK = 0, 1, 2, 3, 4, 5, 6, 7
#: Entries of ``note``: number of requests, number of peers asked, number of answers; number of wakes; and the number of
#: wakes between two blocks.
ROUND, ASKED, HEARD, WAKES, PERIOD, NOTES = 0, 1, 2, 3, 4, 5


class Own(NamedTuple):
    """State of the agents."""

    model: Any  # state of the method
    known: Any  # state of the sampler
    block: np.ndarray  # (n, kappa, BLOCK) data of the last peers asked
    note: np.ndarray  # (n, NOTES)

    theta, account = parts.theta, parts.account


class Edge(NamedTuple):
    """State of the edges."""

    model: Any  # state of the method
    stamp: np.ndarray  # (edges,) stamp of the weight
    square: np.ndarray  # (edges,) |theta_k - theta_l|^2 when the weight was last computed


@inline
def forward(outbox, first, peer):
    """Shift the kinds of the method's messages from ``first`` on; redirect broadcasts to one peer, if given."""
    for h in range(first, outbox.cursor[TAIL]):
        outbox.kind[h] += OFFSET
        if peer != VACANT and outbox.to[h] == EVERYONE:
            outbox.to[h] = peer


@as_rule
class PlainLoss(NamedTuple):
    """Report exact losses. A private method replaces this by its own ``loss_report``."""

    def reported_loss(self, data, me):
        """Return ``c_k L_k``, the loss per unit of degree; 0 if a_k does not grow with the degree."""
        return data.loss_weight * loss_of(data, me.theta) if data.scaled else 0.0


@noinline
def own_cost(self, data, me):
    """Return the reported loss."""
    return self.loss_report.reported_loss(data, me.model)


@inline
def next_stamp(data, peer, mine, theirs):
    """Return a stamp greater than those of both ends."""
    return 2.0 * (max(mine, theirs) // 2.0 + 1.0) + (1.0 if data.address < peer else 0.0)


@inline
def view_of(data, edges, slot):
    """Return weight and stamp of an edge, as this agent knows it."""
    return (data.weight[slot], edges.stamp[slot]) if slot != VACANT else (0.0, 0.0)


@inline
def describe(data, edges, slot, out):
    """Write an edge as this agent knows it, the beginning of every message."""
    for k in range(WEIGHT_LENGTH):
        out[k] = 0.0
    if slot != VACANT:
        out[0], out[1], out[2] = data.weight[slot], edges.stamp[slot], edges.square[slot]


@inline
def tell(peer, weight, stamp, square, outbox):
    """Send a peer the weight of the common edge."""
    outbox.scratch[0], outbox.scratch[1], outbox.scratch[2] = weight, stamp, square
    send(outbox, peer, WEIGHT, outbox.scratch[:WEIGHT_LENGTH])


@inline
def end_edge(data, edges, slot):
    """Remove an edge."""
    data.peer[slot] = VACANT
    data.weight[slot] = 0.0
    data.choice[slot] = 0.0
    edges.stamp[slot] = 0.0


@noinline
def admit(rule, data, edges, square, outbox):
    """Remark 1: return whether a peer with such a model may become a neighbour, for which a less similar one may go."""
    if rule.max_edges == 0:
        return True
    count, farthest = 0, VACANT
    for k in range(data.peer.shape[0]):
        if data.peer[k] != VACANT:
            count += 1
            if farthest == VACANT or edges.square[k] > edges.square[farthest]:
                farthest = k
    if count < rule.max_edges:
        return True
    if edges.square[farthest] <= square:
        return False
    peer, stamp = data.peer[farthest], edges.stamp[farthest]
    end_edge(data, edges, farthest)
    tell(peer, 0.0, next_stamp(data, peer, stamp, stamp), 0.0, outbox)
    return True


@noinline
def set_weight(self, data, me, edges, peer, slot, weight, stamp, square, outbox):
    """Change, begin or end an edge. Return whether this was possible: a new edge needs a free slot."""
    if weight == 0.0:
        if slot != VACANT:
            end_edge(data, edges, slot)
        return True
    fresh = slot == VACANT
    if fresh:
        if not admit(self.rule, data, edges, square, outbox):
            return False
        vacant = 0
        for k in range(data.peer.shape[0] - 1, -1, -1):
            if data.peer[k] == VACANT:
                vacant += 1
                slot = k
        if vacant <= self.spare:
            outbox.cursor[NEEDS_ROOM] = 1
        if vacant == 0:
            return False
        data.peer[slot] = peer
        data.choice[slot] = 1.0
    data.weight[slot] = weight
    edges.stamp[slot] = stamp
    edges.square[slot] = max(0.0, square)
    if fresh:
        self.method.open(data, me.model, edges.model, slot)
    return True


@noinline
def greet_one(self, data, me, edges, peer, outbox):
    """Send a new neighbour the method's greeting."""
    first = outbox.cursor[TAIL]
    self.method.greet(data, me.model, edges.model, outbox)
    forward(outbox, first, peer)


@noinline
def hear(self, data, me, edges, peer, slot, weight, stamp, square, outbox):
    """Compare the weight of an edge with the other end's. Return whether this agent's weight is the later one."""
    mine = edges.stamp[slot] if slot != VACANT else 0.0
    if stamp > mine and 0.0 <= weight <= self.rule.max_weight:
        if not set_weight(self, data, me, edges, peer, slot, weight, stamp, square, outbox):
            # No free slot: refuse the edge.
            tell(peer, 0.0, next_stamp(data, peer, stamp, stamp), square, outbox)
        elif weight > 0.0 and slot == VACANT:
            greet_one(self, data, me, edges, peer, outbox)
    return stamp < mine


@noinline
def ask(self, data, me, edges, dice, outbox):
    """Step 1: draw a set of peers, and request their models, degrees and losses."""
    self.sampling.refresh(data, me.known, dice, outbox)
    peers = me.block[:, PEER]
    count = self.sampling.sample(data, me.known, dice, peers)
    me.note[ROUND] += 1.0
    me.note[ASKED], me.note[HEARD] = count, 0.0
    for k in range(count):
        me.block[k, ANSWERED] = 0.0
        peer = int(peers[k])
        describe(data, edges, slot_of(data.peer, peer, VACANT), outbox.scratch)
        outbox.scratch[WEIGHT_LENGTH] = me.note[ROUND]
        send(outbox, peer, ASK, outbox.scratch[:ASK_LENGTH])


@noinline
def answer(self, data, me, edges, message, outbox):
    """Send the agent's degree, loss and model, and the weight of the edge as this agent knows it."""
    theta, out = me.model.theta, outbox.scratch
    cost = own_cost(self, data, me)
    describe(data, edges, slot_of(data.peer, message.sender, message.slot), out)
    out[3], out[4], out[5] = message.text[3], total(data.weight), cost
    size = theta.shape[0]
    if self.pairs:
        size = write_pairs(theta, out[ANSWER_LENGTH:])
    else:
        copy_to(theta, out[ANSWER_LENGTH:])
    send(outbox, message.sender, ANSWER, out[: ANSWER_LENGTH + size])


@noinline
def note_answer(self, data, me, message, outbox):
    """Store a peer's answer. Return whether all answers have arrived."""
    weight, stamp, degree, cost = message.text[0], message.text[1], message.text[4], message.text[5]
    if message.text[3] != me.note[ROUND]:
        return False
    p, model = me.model.theta.shape[0], message.text[ANSWER_LENGTH:]
    theirs = outbox.scratch[:p]
    if not (are_pairs(model, p) if self.pairs else model.shape[0] == p):
        return False
    if self.pairs:
        read_pairs(model, theirs)
    else:
        copy_to(model, theirs)
    for k in range(int(me.note[ASKED])):
        line = me.block[k]
        if line[PEER] == message.sender and line[ANSWERED] == 0.0:
            square = 0.0
            for c in range(p):
                gap = me.model.theta[c] - theirs[c]
                square += gap * gap
            line[STAMP], line[SQUARE] = stamp, square
            line[OTHERS] = max(0.0, degree - weight)
            line[COST] = edge_cost(0.0, cost, square, 2.0 * data.smooth)
            line[ANSWERED] = 1.0
            me.note[HEARD] += 1.0
    return me.note[HEARD] == me.note[ASKED]


@noinline
def weigh(self, data, me, edges, outbox):
    """Steps 2 and 3: compute new weights for the peers that have answered, and send each changed weight."""
    asked, heard = int(me.note[ASKED]), int(me.note[HEARD])
    me.note[ASKED], me.note[HEARD] = 0.0, 0.0
    if heard == 0:
        return
    mine = own_cost(self, data, me)
    cost, others = outbox.scratch[:heard], outbox.scratch[heard : 2 * heard]
    weight, out = outbox.scratch[2 * heard : 3 * heard], outbox.scratch[3 * heard : 4 * heard]
    own, k = total(data.weight), 0
    for a in range(asked):
        line = me.block[a]
        if line[ANSWERED] == 1.0:
            peer = int(line[PEER])
            cost[k], others[k] = mine + line[COST], line[OTHERS]
            weight[k] = view_of(data, edges, slot_of(data.peer, peer, VACANT))[0]
            own -= weight[k]
            k += 1
    better(self.rule, data.smooth, weight, cost, others, max(0.0, own), out)
    k = 0
    for a in range(asked):
        if me.block[a, ANSWERED] == 1.0:
            me.block[a, NEW] = out[k]
            k += 1
    for a in range(asked):  # from here on scratch holds messages
        line = me.block[a]
        if line[ANSWERED] == 1.0:
            peer, square = int(line[PEER]), line[SQUARE]
            slot = slot_of(data.peer, peer, VACANT)
            before, stamp = view_of(data, edges, slot)
            if line[NEW] == before:
                continue
            stamp = next_stamp(data, peer, stamp, line[STAMP])
            if set_weight(self, data, me, edges, peer, slot, line[NEW], stamp, square, outbox):
                # The weight before the greeting, which needs the edge.
                tell(peer, line[NEW], stamp, square, outbox)
                if slot == VACANT and line[NEW] > 0.0:
                    greet_one(self, data, me, edges, peer, outbox)


def check_weights(rule, weight):
    """Refuse initial edges above the largest weight, which would never be sent."""
    if weight.max(initial=0.0) > rule.max_weight:
        raise MismatchError(
            f"the initial graph has an edge of weight {weight.max():g}, and no edge may weigh more than "
            f"max_weight={rule.max_weight:g}: raise it, or scale the weights down"
        )


def _learning(method, rule=None, every=100, sampling="uniform"):
    """Check and complete the fields of a learned method; refuse a method without a graph to learn."""
    method, rule = resolve_method(method), GraphRule() if rule is None else rule
    if isinstance(method, Learned):
        raise ParameterError(f"{method!r} learns its graph already")
    if not isinstance(rule, GraphRule):
        raise ParameterError(f"rule={rule!r} must be a ct.GraphRule")
    if not method.promises.minimises and not method.training.jobs:
        raise MismatchError(
            f"{method!r} uses edges only to exchange averages over all agents, so that all connected graphs are "
            "equally good: use a fixed one, such as ct.graphs.random_regular(n, 6)"
        )
    if isinstance(method, Robust) and method.rule.by_neighbours:
        raise MismatchError(
            f"{method.rule!r} needs room for every neighbour, whose number grows while edges are learned: use "
            "ct.robust.TrimmedMean(), ct.robust.Median(), ct.robust.Clipping(...) or ct.robust.GeometricMedian()"
        )
    if not can_open(method):
        raise ParameterError(f"{method!r} has no handler 'open': it cannot begin an edge during a run")
    sampler, loss_report = resolve_sampler(sampling), method.privacy.loss_report
    if loss_report is None and method.privacy.plan is not None:
        raise ParameterError(
            f"{method!r} is private, and does not declare what may be sent of an agent's loss: 'loss_report'"
        )
    loss_report = PlainLoss() if loss_report is None else loss_report
    more = method.traffic.dice, rule.kappa + 2, method.edges.sparse, loss_report
    return method, rule, positive("every", every), sampler, *more


@made_by(_learning)
@method
class Learned(NamedTuple):
    """A method whose agents learn the graph during the run, DADA Section 4. Works with every method.

    The graph of the problem is the initial one, and may be empty.

    Parameters
    ----------
    method : rule or str
    rule : GraphRule, optional
    every : float
        Number of wakes, of all agents together, between two updates of the graph, as the paper counts: an agent updates
        its edges at every (every / n)-th wake of its own, and at most at every wake.
    sampling : "uniform", "shuffle", "friends" or a sampler
        Source of the peers to ask: see ``coterie.core.wrap.sampling``.

    Examples
    --------
    >>> import coterie as ct
    >>> problem = ct.Problem.propagation([[0.0], [0.1], [5.0], [5.1]], ct.graphs.empty(4), alpha=0.5)
    >>> run = ct.simulate(problem, ct.Learned("cd", ct.GraphRule(kappa=2)), wakes=400, seed=0)
    >>> run.graph
    Graph(n=4, edges=2, components=2, isolated=0)
    """

    method: Any
    rule: Any = None
    every: float = 100.0
    sampling: Any = "uniform"
    inner_dice: int = 0
    spare: int = 0  # free slots for new edges: those of one block, and some for edges that peers begin
    pairs: bool = False
    loss_report: Any = PlainLoss()

    # Agents wake one by one, send more than the method does, to agents unknown to it, and without end.
    exchanges = publishes = copies = directed = greets_all = synchronous = False
    round = prepare = publish = footprint = wakes_per_agent = shown = None
    jobs = 0
    minimises = True

    def __repr__(self):
        return f"Learned({self.method!r}, {self.rule!r}, every={self.every:g}, sampling={self.sampling!r})"

    @property
    def dice(self):
        return self.inner_dice + self.sampling.dice(self.rule.kappa)

    @property
    def messages(self):
        """Messages about edges, of the sampler, and of the method."""
        told = (Counter(), Number(0.0, counted=False))  # stamp and square
        weight, silent = (Number(0.0, self.rule.max_weight, counted) for counted in (True, False))
        answer = (silent, *told, UNCOUNTED, Number(0.0), Loss(), Pairs() if self.pairs else Vector())
        edges = {ASK: (silent, *told, UNCOUNTED), ANSWER: answer, WEIGHT: (weight, *told)}
        inner = {OFFSET + kind: message for kind, message in self.method.messages.items()}
        return edges | dict(self.sampling.messages) | inner

    @property
    def max_messages(self):
        inner = self.method.traffic.max_messages
        # For each peer: request, answer, and at both ends of an edge a weight, one that is removed, and a greeting; and
        # for every greeting the method's answer. Twice, for an earlier block that was incomplete.
        return inner + 2 + 2 * self.rule.kappa * (8 + 4 * inner)

    def fit_for(self, problem):
        if self.rule.kappa >= problem.n:
            raise ParameterError(
                f"kappa={self.rule.kappa}: an agent cannot ask so many peers, the network has {problem.n} agents"
            )
        if self.rule.mu == AUTO and problem.smooth == 0.0:
            raise MismatchError("agents that do not influence each other, mu=0, have no graph to learn: pass mu > 0")
        check_weights(self.rule, problem.graph.weight)
        star = problem.graph.from_edges(problem.n, np.zeros(problem.n - 1, int), np.arange(1, problem.n))
        check_fit(self.method, problem.on(graph=star))  # with a star: any two agents may become neighbours

    def scratch_size(self, arrays, p):
        views = self.sampling.scratch_size()
        model = 2 * p if self.pairs else p
        return max(self.method.scratch_size(arrays, p), ANSWER_LENGTH + model, 4 * self.rule.kappa, views)

    def start(self, arrays, theta):
        """State of the method, and an empty block."""
        n, edges = theta.shape[0], arrays.peer.shape[0]
        check_weights(self.rule, arrays.weight)
        own, edge = self.method.start(arrays, theta)
        note = np.zeros((n, NOTES))
        note[:, PERIOD] = max(1.0, np.rint(self.every / arrays.n_agents))
        stamp = np.where(arrays.peer == VACANT, 0.0, 2.0)
        far = np.full(edges, MAX_WEIGHT)  # not computed yet: the first edge to be removed if their number is limited
        state = Own(own, self.sampling.start(arrays), np.zeros((n, self.rule.kappa, BLOCK)), note)
        return state, Edge(edge, stamp, far)

    def enlarge(self, arrays, edge):
        """Enlarge the method's state of edges, if needed."""
        enlarge = self.method.edges.enlarge
        return edge if enlarge is None else edge._replace(model=enlarge(arrays, edge.model))

    def open(self, data, me, edges, slot):
        """Initialise the method's state of a new edge."""
        self.method.open(data, me.model, edges.model, slot)

    def greet(self, data, me, edges, outbox):
        first = outbox.cursor[TAIL]
        self.method.greet(data, me.model, edges.model, outbox)
        forward(outbox, first, VACANT)

    def wake(self, data, me, edges, randomness, outbox):
        """Run the method's wake; and, when it is time, ask some peers."""
        me.note[WAKES] += 1.0
        due = me.note[WAKES] >= me.note[PERIOD]
        if due:
            me.note[WAKES] = 0.0
            weigh(self, data, me, edges, outbox)  # with the answers so far, if not all peers have answered
        first = outbox.cursor[TAIL]
        inner = Randomness(randomness.dice[: self.inner_dice], randomness.peer, randomness.moment)
        self.method.wake(data, me.model, edges.model, inner, outbox)
        forward(outbox, first, VACANT)
        if due:
            ask(self, data, me, edges, randomness.dice[self.inner_dice :], outbox)

    def receive(self, data, me, edges, message, outbox):
        """Process a message of the method, of the sampler, or about an edge."""
        peer, slot, text = message.sender, message.slot, message.text
        if message.kind >= OFFSET:
            if slot == VACANT:
                # The sender has an edge that this agent lacks: one of them has missed a message.
                tell(peer, 0.0, 0.0, 0.0, outbox)
            first = outbox.cursor[TAIL]
            inner = Message(peer, slot, message.kind - OFFSET, text)
            self.method.receive(data, me.model, edges.model, inner, outbox)
            forward(outbox, first, VACANT)
        elif message.kind >= SHUFFLE:
            self.sampling.merge(data, me.known, message, outbox)
        else:
            later = hear(self, data, me, edges, peer, slot, text[0], text[1], text[2], outbox)
            if message.kind == ASK:
                answer(self, data, me, edges, message, outbox)
            elif message.kind == ANSWER:
                if note_answer(self, data, me, message, outbox):
                    weigh(self, data, me, edges, outbox)
            elif later and slot != VACANT:
                tell(peer, data.weight[slot], edges.stamp[slot], edges.square[slot], outbox)
