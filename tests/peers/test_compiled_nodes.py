"""Nodes and the simulator agree to the last bit when both are compiled, too; the other tests of nodes are plain."""

from __future__ import annotations

import pytest
from test_node import check_against_simulator

SLOW = pytest.mark.slow  # compiling, that is


@pytest.mark.parametrize("words", ["cd", pytest.param("djam", marks=SLOW), pytest.param("admm", marks=SLOW)])
def test_compiled_nodes_do_what_the_simulator_does(words):
    check_against_simulator(words, {})
