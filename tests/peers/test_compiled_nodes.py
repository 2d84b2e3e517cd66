"""Nodes and the simulator agree to the last bit when both are compiled, too; the other tests of nodes are plain."""

from __future__ import annotations

import numpy as np
import pytest
import test_networks
from test_node import check_against_simulator

pytestmark = pytest.mark.compiled

SLOW = pytest.mark.slow  # compiling, that is


@pytest.mark.parametrize("words", ["cd", pytest.param("djam", marks=SLOW), pytest.param("admm", marks=SLOW)])
def test_compiled_nodes_do_what_the_simulator_does(words):
    check_against_simulator(words, {})


@SLOW
def test_compiled_peers_learn_networks():
    test_networks.test_peers_do_what_the_simulator_does("tied-sgd", 4)
    group = test_networks.group_of(method="tied-sgd").start().run(10.0)
    assert np.isfinite(test_networks.scores(group.nodes[0])["objective"])
    assert all(node.wakes > 2 and not node.mail.gate.refused for node in group.nodes.values())
