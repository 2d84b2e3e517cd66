"""What tests in several folders share."""

from __future__ import annotations

import pytest


@pytest.fixture
def uncompiled(monkeypatch):
    """Loops over agents run in plain Python: for a short run, that takes much less time than to compile them.

    The source is the same. That compiled code does the same, bit by bit, is a promise of every method, which
    tests/contract checks.
    """
    from coterie.core import events, loop
    from coterie.core.plain_backend import kernel

    for module, names in ((loop, ("run", "rounds", "accept")), (events, ("begin", "meet", "run"))):
        for name in names:
            monkeypatch.setattr(module, name, kernel(getattr(module, name).python))
    monkeypatch.setattr(loop.meet, "__defaults__", (loop.run,))


@pytest.fixture(params=["plain", pytest.param("compiled", marks=pytest.mark.slow)])
def seldom_compiled(request):
    """For tests that alone need a kernel: it is compiled for `pytest -m slow`."""
    if request.param == "plain":
        request.getfixturevalue("uncompiled")
