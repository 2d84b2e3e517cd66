"""Every way of learning a graph keeps its contract, and the contract notices those that do not."""

from __future__ import annotations

import pytest

import coterie as ct
from coterie.core.arrays import TAIL
from coterie.core.method import method
from coterie.core.methods.fixed import FixedModels
from coterie.core.wrap.learned import ASK, ASKED, HEARD, WEIGHT, Learned, answer, ask, hear, note_answer, tell, weigh
from coterie.errors import ContractError, ParameterError
from coterie.testing.graph_rules import GRAPH_RULE_CHECKS, check_graph_rule

RULES = [
    ct.GraphRule(kappa=3),
    ct.GraphRule(mu=0.3, lam=10.0, delta=0.05, kappa=6),
    ct.GraphRule(lam=0.05, kappa=1),
    ct.GraphRule(kappa=2, step="local"),
    ct.GraphRule(kappa=3, step="paper"),
    ct.GraphRule(kappa=3, max_edges=2),
    ct.GraphRule(kappa=3, max_weight=1.0),
]


#: All promises; one of them is about compiled code.
PROMISES = [
    pytest.param(promise, marks=pytest.mark.compiled if "compiled" in promise else ()) for promise in GRAPH_RULE_CHECKS
]


@pytest.mark.parametrize("promise", PROMISES)
@pytest.mark.parametrize("graph_rule", RULES, ids=repr)
def test_every_graph_rule_keeps_its_promise(graph_rule, promise):
    GRAPH_RULE_CHECKS[promise](ct.Learned(FixedModels(), graph_rule, every=1))


@pytest.mark.slow
@pytest.mark.parametrize("promise", PROMISES)
@pytest.mark.parametrize("sampling", ["shuffle", ct.sampling.PeerShuffling(4, 2)], ids=repr)
def test_every_promise_is_kept_where_peers_come_from_gossip(sampling, promise):
    GRAPH_RULE_CHECKS[promise](ct.Learned(FixedModels(), ct.GraphRule(kappa=2), every=1, sampling=sampling))


@method
class Deaf(Learned):
    """Does not listen to what others say about the weight of an edge."""

    def receive(self, data, me, edges, message, outbox):
        if message.kind == ASK:
            answer(self, data, me, edges, message, outbox)
        elif message.kind != WEIGHT and note_answer(self, data, me, message, outbox):
            weigh(self, data, me, edges, outbox)


@method
class Waiting(Learned):
    """Does nothing until everybody it asked has answered."""

    def wake(self, data, me, edges, randomness, outbox):
        if me.note[ASKED] == me.note[HEARD]:
            ask(self, data, me, edges, randomness.dice[self.inner_dice :], outbox)


@method
class Modest(Learned):
    """Says that its degree is half of what it is."""

    def receive(self, data, me, edges, message, outbox):
        later = hear(self, data, me, edges, message.sender, message.slot, message.text[0], message.text[1], 0.0, outbox)
        if message.kind == ASK:
            answer(self, data, me, edges, message, outbox)
            outbox.text[outbox.cursor[TAIL] - 1, 4] *= 0.5
        elif message.kind != WEIGHT:
            if note_answer(self, data, me, message, outbox):
                weigh(self, data, me, edges, outbox)
        elif later:
            tell(message.sender, data.weight[message.slot], edges.stamp[message.slot], 0.0, outbox)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "promise", "complaint"),
    [
        (Deaf, "keeps both ends alike", "hold different"),
        (Modest, "never increases the objective", "increases the objective"),
        (Modest, "finds the best graph", "away from the optimum"),
        (Modest, "learns the same on peers", "degree is not the sum"),
        (Waiting, "comes to agree after late and lost messages", "away from the optimum"),
    ],
)
def test_planted_faults_are_found(fault, promise, complaint):
    with pytest.raises(ContractError, match=complaint):
        GRAPH_RULE_CHECKS[promise](fault(FixedModels(), ct.GraphRule(kappa=3), 1.0))


@pytest.mark.slow
def test_waiting_does_no_harm_by_good_mail():
    GRAPH_RULE_CHECKS["finds the best graph"](Waiting(FixedModels(), ct.GraphRule(kappa=3), 1.0))


def test_a_broken_promise_is_named(monkeypatch):
    def broken(learned):
        raise ContractError("it is too late")

    monkeypatch.setitem(GRAPH_RULE_CHECKS, "keeps both ends alike", broken)
    with pytest.raises(ContractError, match=r"GraphRule\(.*kappa=3\) breaks a promise, 'keeps both.*: it is too late"):
        check_graph_rule(ct.GraphRule(kappa=3))


def test_only_graph_rules_are_checked():
    with pytest.raises(ParameterError, match="GraphRule"):
        check_graph_rule(ct.CoordinateDescent())
