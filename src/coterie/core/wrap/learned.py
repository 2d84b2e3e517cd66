"""A method whose agents also learn with whom to collaborate: ``Learned(method, rule)``.

The handlers of the method run as they are. Beside them, an agent now and then asks kappa random peers for their model,
degree and loss, works out the weights of its ties to them, and tells them (DADA, Section 4). A new neighbour is greeted
as the method greets everybody at the start; a tie whose weight becomes zero is forgotten, at both ends.

The two ends of a tie may want to change its weight at the same time, and letters may be late or lost. So a weight goes
with a stamp: ``2 (number of changes) + (the lower address made the last one)``. Whoever hears of a greater stamp takes
over the weight; whoever hears of a smaller one answers with its own. So the ends come to agree whenever they hear of
each other, and what an agent calls its degree is always the sum of the weights that it holds.

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
from ..compile import inline, noinline
from ..letters import Counter, Loss, Number, Pairs, Vector
from ..linear import are_pairs, copy_to, read_pairs, total, write_pairs
from ..method import NamedTuple, can_open, method
from ..methods import check_fit, resolve_method
from ..rules import made_by
from ..rules import rule as as_rule
from ..world import EVERYONE, NEEDS_ROOM, TAIL, VACANT, Chance, Letter, loss_of, send, slot_of
from . import parts
from .graph_objective import tie_cost
from .graph_rule import AUTO, MAX_WEIGHT, GraphRule, better
from .robust import Robust
from .sampling import SHUFFLE, SHUFFLED, resolve_sampler

#: Kinds of letters: a request for what is needed to weigh a tie, its answer, and the weight of a tie; then those of the
#: sampler; and from OFFSET on, those of the method.
ASK, ANSWER, WEIGHT, OFFSET = 0, 1, 2, SHUFFLED + 1
#: Numbers in a letter. All begin with a tie as the sender knows it: weight, stamp, and the squared distance of the
#: models when it was last weighed. A question goes on with the number of its round; an answer with that, degree, loss
#: and model.
WEIGHT_LENGTH, ASK_LENGTH, ANSWER_LENGTH = 3, 4, 6
#: A number that is not counted where bits are: the round of a question.
UNCOUNTED = Number(counted=False)
#: What an agent notes of each peer that it asked.
PEER, STAMP, OTHERS, COST, SQUARE, NEW, ANSWERED, BLOCK = 0, 1, 2, 3, 4, 5, 6, 7
#: What it notes beside: how many times it has asked, how many peers, how many have answered; its wakes; and how many
#: of them lie between two blocks.
ROUND, ASKED, HEARD, WAKES, PERIOD, NOTES = 0, 1, 2, 3, 4, 5


class Own(NamedTuple):
    """State of the agents."""

    model: Any  # the method's own
    known: Any  # the sampler's own
    block: np.ndarray  # (n, kappa, BLOCK) the peers asked last
    note: np.ndarray  # (n, NOTES)

    theta, account = parts.theta, parts.account


class Tie(NamedTuple):
    """State of the ties."""

    model: Any  # the method's own
    stamp: np.ndarray  # (ties,) of the weight
    square: np.ndarray  # (ties,) |theta_k - theta_l|^2 when the tie was last weighed


@inline
def forward(outbox, first, peer):
    """Letters of the method from ``first`` on get their kind here; those to everybody go to one peer, if given."""
    for h in range(first, outbox.cursor[TAIL]):
        outbox.kind[h] += OFFSET
        if peer != VACANT and outbox.to[h] == EVERYONE:
            outbox.to[h] = peer


@as_rule
class PlainLoss(NamedTuple):
    """Agents tell each other their losses. A private method brings its own ``loss_report``."""

    def reported_loss(self, data, me):
        """``c_k L_k``: what a unit of degree costs me. Nothing where a_k does not grow with the degree."""
        return data.loss_weight * loss_of(data, me.theta) if data.scaled else 0.0


@noinline
def own_cost(self, data, me):
    """What I tell of my loss."""
    return self.loss_report.reported_loss(data, me.model)


@inline
def next_stamp(data, peer, mine, theirs):
    """A stamp greater than both ends'."""
    return 2.0 * (max(mine, theirs) // 2.0 + 1.0) + (1.0 if data.address < peer else 0.0)


@inline
def view_of(data, ties, slot):
    """Weight and stamp of a tie as I know them."""
    return (data.weight[slot], ties.stamp[slot]) if slot != VACANT else (0.0, 0.0)


@inline
def describe(data, ties, slot, out):
    """A tie as I know it, as letters begin."""
    for k in range(WEIGHT_LENGTH):
        out[k] = 0.0
    if slot != VACANT:
        out[0], out[1], out[2] = data.weight[slot], ties.stamp[slot], ties.square[slot]


@inline
def tell(peer, weight, stamp, square, outbox):
    """Tell a peer the weight of our tie."""
    outbox.scratch[0], outbox.scratch[1], outbox.scratch[2] = weight, stamp, square
    send(outbox, peer, WEIGHT, outbox.scratch[:WEIGHT_LENGTH])


@inline
def end_tie(data, ties, slot):
    """Forget a tie."""
    data.peer[slot] = VACANT
    data.weight[slot] = 0.0
    data.choice[slot] = 0.0
    ties.stamp[slot] = 0.0


@noinline
def admit(rule, data, ties, square, outbox):
    """Remark 1: may a peer with such a model become my neighbour? One with a less similar model may have to go."""
    if rule.max_edges == 0:
        return True
    count, farthest = 0, VACANT
    for k in range(data.peer.shape[0]):
        if data.peer[k] != VACANT:
            count += 1
            if farthest == VACANT or ties.square[k] > ties.square[farthest]:
                farthest = k
    if count < rule.max_edges:
        return True
    if ties.square[farthest] <= square:
        return False
    peer, stamp = data.peer[farthest], ties.stamp[farthest]
    end_tie(data, ties, farthest)
    tell(peer, 0.0, next_stamp(data, peer, stamp, stamp), 0.0, outbox)
    return True


@noinline
def set_weight(self, data, me, ties, peer, slot, weight, stamp, square, outbox):
    """Change, begin or end a tie. Says whether it could: a tie cannot begin where there is no slot for it."""
    if weight == 0.0:
        if slot != VACANT:
            end_tie(data, ties, slot)
        return True
    fresh = slot == VACANT
    if fresh:
        if not admit(self.rule, data, ties, square, outbox):
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
    ties.stamp[slot] = stamp
    ties.square[slot] = max(0.0, square)
    if fresh:
        self.method.open(data, me.model, ties.model, slot)
    return True


@noinline
def greet_one(self, data, me, ties, peer, outbox):
    """Greet a new neighbour as the method greets everybody at the start."""
    first = outbox.cursor[TAIL]
    self.method.greet(data, me.model, ties.model, outbox)
    forward(outbox, first, peer)


@noinline
def hear(self, data, me, ties, peer, slot, weight, stamp, square, outbox):
    """Compare the weight of a tie with what the other end says. Says whether mine is the later one."""
    mine = ties.stamp[slot] if slot != VACANT else 0.0
    if stamp > mine and 0.0 <= weight <= self.rule.max_weight:
        if not set_weight(self, data, me, ties, peer, slot, weight, stamp, square, outbox):
            # No room for it: then there is no tie.
            tell(peer, 0.0, next_stamp(data, peer, stamp, stamp), square, outbox)
        elif weight > 0.0 and slot == VACANT:
            greet_one(self, data, me, ties, peer, outbox)
    return stamp < mine


@noinline
def ask(self, data, me, ties, dice, outbox):
    """Step 1: draw a set of peers, and request their models, degrees and losses."""
    self.sampling.refresh(data, me.known, dice, outbox)
    peers = me.block[:, PEER]
    count = self.sampling.sample(data, me.known, dice, peers)
    me.note[ROUND] += 1.0
    me.note[ASKED], me.note[HEARD] = count, 0.0
    for k in range(count):
        me.block[k, ANSWERED] = 0.0
        peer = int(peers[k])
        describe(data, ties, slot_of(data.peer, peer, VACANT), outbox.scratch)
        outbox.scratch[WEIGHT_LENGTH] = me.note[ROUND]
        send(outbox, peer, ASK, outbox.scratch[:ASK_LENGTH])


@noinline
def answer(self, data, me, ties, letter, outbox):
    """My degree, loss and model, and the weight of our tie as I know it."""
    theta, out = me.model.theta, outbox.scratch
    cost = own_cost(self, data, me)
    describe(data, ties, slot_of(data.peer, letter.sender, letter.slot), out)
    out[3], out[4], out[5] = letter.text[3], total(data.weight), cost
    size = theta.shape[0]
    if self.pairs:
        size = write_pairs(theta, out[ANSWER_LENGTH:])
    else:
        copy_to(theta, out[ANSWER_LENGTH:])
    send(outbox, letter.sender, ANSWER, out[: ANSWER_LENGTH + size])


@noinline
def note_answer(self, data, me, letter, outbox):
    """Write down what a peer answered. Says whether all have."""
    weight, stamp, degree, cost = letter.text[0], letter.text[1], letter.text[4], letter.text[5]
    if letter.text[3] != me.note[ROUND]:
        return False
    p, model = me.model.theta.shape[0], letter.text[ANSWER_LENGTH:]
    theirs = outbox.scratch[:p]
    if not (are_pairs(model, p) if self.pairs else model.shape[0] == p):
        return False
    if self.pairs:
        read_pairs(model, theirs)
    else:
        copy_to(model, theirs)
    for k in range(int(me.note[ASKED])):
        line = me.block[k]
        if line[PEER] == letter.sender and line[ANSWERED] == 0.0:
            square = 0.0
            for c in range(p):
                gap = me.model.theta[c] - theirs[c]
                square += gap * gap
            line[STAMP], line[SQUARE] = stamp, square
            line[OTHERS] = max(0.0, degree - weight)
            line[COST] = tie_cost(0.0, cost, square, 2.0 * data.smooth)
            line[ANSWERED] = 1.0
            me.note[HEARD] += 1.0
    return me.note[HEARD] == me.note[ASKED]


@noinline
def weigh(self, data, me, ties, outbox):
    """Steps 2 and 3: new weights for the peers that have answered, and a word to each that is concerned."""
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
            weight[k] = view_of(data, ties, slot_of(data.peer, peer, VACANT))[0]
            own -= weight[k]
            k += 1
    better(self.rule, data.smooth, weight, cost, others, max(0.0, own), out)
    k = 0
    for a in range(asked):
        if me.block[a, ANSWERED] == 1.0:
            me.block[a, NEW] = out[k]
            k += 1
    for a in range(asked):  # from here on the scratch is for letters
        line = me.block[a]
        if line[ANSWERED] == 1.0:
            peer, square = int(line[PEER]), line[SQUARE]
            slot = slot_of(data.peer, peer, VACANT)
            before, stamp = view_of(data, ties, slot)
            if line[NEW] == before:
                continue
            stamp = next_stamp(data, peer, stamp, line[STAMP])
            if set_weight(self, data, me, ties, peer, slot, line[NEW], stamp, square, outbox):
                # First the word, then a greeting: it finds the tie made.
                tell(peer, line[NEW], stamp, square, outbox)
                if slot == VACANT and line[NEW] > 0.0:
                    greet_one(self, data, me, ties, peer, outbox)


def check_weights(rule, weight):
    """Refuse ties to begin with that nobody would be told of."""
    if weight.max(initial=0.0) > rule.max_weight:
        raise MismatchError(
            f"the graph to begin with has a tie of weight {weight.max():g}, and none may weigh more than "
            f"max_weight={rule.max_weight:g}: raise it, or scale the weights down"
        )


def _learning(method, rule=None, every=100, sampling="ideal"):
    """What a learned method is made of, and what is worked out from that; refuse one without a graph to learn."""
    method, rule = resolve_method(method), GraphRule() if rule is None else rule
    if isinstance(method, Learned):
        raise ParameterError(f"{method!r} learns its graph already")
    if not isinstance(rule, GraphRule):
        raise ParameterError(f"rule={rule!r} must be a ct.GraphRule")
    if not method.promises.minimises and not method.training.jobs:
        raise MismatchError(
            f"{method!r} uses ties only to exchange averages over all agents, so that there is no better or worse "
            "graph to learn: any connected one does, such as ct.graphs.random_regular(n, 6)"
        )
    if isinstance(method, Robust) and method.rule.by_neighbours:
        raise MismatchError(
            f"{method.rule!r} needs room for every neighbour, whose number grows while ties are learned: use "
            "ct.TrimmedMean(), ct.Median(), ct.Clipping(...) or ct.GeometricMedian()"
        )
    if not can_open(method):
        raise ParameterError(f"{method!r} has no handler 'open': it cannot begin a tie while it runs")
    sampler, loss_report = resolve_sampler(sampling), method.privacy.loss_report
    if loss_report is None and method.privacy.plan is not None:
        raise ParameterError(
            f"{method!r} is private, and does not say what may be told of an agent's loss: 'loss_report'"
        )
    loss_report = PlainLoss() if loss_report is None else loss_report
    more = method.traffic.dice, rule.kappa + 2, method.ties.sparse, loss_report
    return method, rule, positive("every", every), sampler, *more


@made_by(_learning)
@method
class Learned(NamedTuple):
    """A method whose agents learn the graph on the way, DADA Section 4. It goes with every method.

    The graph of the problem is the one to begin with, and may be empty.

    Parameters
    ----------
    method : rule or str
    rule : GraphRule, optional
    every : float
        How many wakes, of anybody, lie between two updates of the graph, as the paper counts: an agent takes its part
        in it at every (every / n)-th wake of its own, and at least at every wake.
    sampling : "ideal", "shuffle", "friends" or a sampler
        Where peers to ask come from: see ``coterie.core.wrap.sampling``.

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
    sampling: Any = "ideal"
    inner_dice: int = 0
    spare: int = 0  # slots for new ties: for one block, and some that others may begin
    pairs: bool = False
    loss_report: Any = PlainLoss()

    # Agents wake one by one, and say more than the method does, to others than it knows of, for as long as one likes.
    exchanges = publishes = copies = directed = greets_all = synchronous = False
    round = prepare = publish = footprint = wakes_per_agent = shown = None
    jobs = 0
    minimises = True

    def __repr__(self):
        return f"Learned({self.method!r}, {self.rule!r}, every={self.every:g}, sampling={self.sampling!r})"

    @property
    def dice(self):
        """Uniform numbers used by a wake."""
        return self.inner_dice + self.sampling.dice(self.rule.kappa)

    @property
    def letters(self):
        """Those about ties, of the sampler, and of the method."""
        told = (Counter(), Number(0.0, counted=False))  # stamp and square
        weight, silent = (Number(0.0, self.rule.max_weight, counted) for counted in (True, False))
        answer = (silent, *told, UNCOUNTED, Number(0.0), Loss(), Pairs() if self.pairs else Vector())
        ties = {ASK: (silent, *told, UNCOUNTED), ANSWER: answer, WEIGHT: (weight, *told)}
        inner = {OFFSET + kind: letter for kind, letter in self.method.letters.items()}
        return ties | dict(self.sampling.letters) | inner

    @property
    def max_letters(self):
        """Letters that one event may post, replies to them included."""
        inner = self.method.traffic.max_letters
        # For each peer: question, answer, and at both ends of a tie a weight, one that had to go, and a greeting; and
        # for every greeting what the method answers to it. Twice, for a block that never was complete.
        return inner + 2 + 2 * self.rule.kappa * (8 + 4 * inner)

    def fit_for(self, problem):
        """Refuse a problem that this method cannot solve."""
        if self.rule.kappa >= problem.n:
            raise ParameterError(
                f"kappa={self.rule.kappa}: an agent cannot ask so many peers, there are {problem.n} agents in all"
            )
        if self.rule.mu == AUTO and problem.smooth == 0.0:
            raise MismatchError("agents that do not influence each other, mu=0, have no graph to learn: give it a mu")
        check_weights(self.rule, problem.graph.weight)
        star = problem.graph.from_edges(problem.n, np.zeros(problem.n - 1, int), np.arange(1, problem.n))
        check_fit(self.method, problem.on(graph=star))  # not as it is: anybody may be tied to anybody

    def scratch_size(self, world, p):
        """Numbers of scratch paper that a handler needs."""
        views = self.sampling.scratch_size()
        model = 2 * p if self.pairs else p
        return max(self.method.scratch_size(world, p), ANSWER_LENGTH + model, 4 * self.rule.kappa, views)

    def start(self, world, theta):
        """State before the first letter: the method's, and an empty block."""
        n, ties = theta.shape[0], world.peer.shape[0]
        check_weights(self.rule, world.weight)
        own, tie = self.method.start(world, theta)
        note = np.zeros((n, NOTES))
        note[:, PERIOD] = max(1.0, np.rint(self.every / world.n_agents))
        stamp = np.where(world.peer == VACANT, 0.0, 2.0)
        far = np.full(ties, MAX_WEIGHT)  # never weighed: the first to go where there may be only so many
        state = Own(own, self.sampling.start(world), np.zeros((n, self.rule.kappa, BLOCK)), note)
        return state, Tie(tie, stamp, far)

    def enlarge(self, world, tie):
        """More room for what the method keeps of a tie, if it needs it."""
        enlarge = self.method.ties.enlarge
        return tie if enlarge is None else tie._replace(model=enlarge(world, tie.model))

    def open(self, data, me, ties, slot):
        """A new tie: the method's part of it."""
        self.method.open(data, me.model, ties.model, slot)

    def greet(self, data, me, ties, outbox):
        """The initial swap of models."""
        first = outbox.cursor[TAIL]
        self.method.greet(data, me.model, ties.model, outbox)
        forward(outbox, first, VACANT)

    def wake(self, data, me, ties, chance, outbox):
        """The method's wake; and, when it is time, a look at some peers."""
        me.note[WAKES] += 1.0
        due = me.note[WAKES] >= me.note[PERIOD]
        if due:
            me.note[WAKES] = 0.0
            weigh(self, data, me, ties, outbox)  # those that have answered last time, if not all did
        first = outbox.cursor[TAIL]
        inner = Chance(chance.dice[: self.inner_dice], chance.peer, chance.moment)
        self.method.wake(data, me.model, ties.model, inner, outbox)
        forward(outbox, first, VACANT)
        if due:
            ask(self, data, me, ties, chance.dice[self.inner_dice :], outbox)

    def receive(self, data, me, ties, letter, outbox):
        """A letter of the method, of the sampler, or about a tie."""
        peer, slot, text = letter.sender, letter.slot, letter.text
        if letter.kind >= OFFSET:
            if slot == VACANT:
                # It takes me for a neighbour, and I do not: one of us has missed something.
                tell(peer, 0.0, 0.0, 0.0, outbox)
            first = outbox.cursor[TAIL]
            inner = Letter(peer, slot, letter.kind - OFFSET, text)
            self.method.receive(data, me.model, ties.model, inner, outbox)
            forward(outbox, first, VACANT)
        elif letter.kind >= SHUFFLE:
            self.sampling.merge(data, me.known, letter, outbox)
        else:
            later = hear(self, data, me, ties, peer, slot, text[0], text[1], text[2], outbox)
            if letter.kind == ASK:
                answer(self, data, me, ties, letter, outbox)
            elif letter.kind == ANSWER:
                if note_answer(self, data, me, letter, outbox):
                    weigh(self, data, me, ties, outbox)
            elif later and slot != VACANT:
                tell(peer, data.weight[slot], ties.stamp[slot], ties.square[slot], outbox)
