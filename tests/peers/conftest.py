"""Tests of real peers run in plain mode, as real peers do: in a process of its own, which compiles nothing.

One of these files is one test here. For a single test of it:

    COTERIE_PLAIN=1 pytest tests/peers/test_node.py -k ...
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

import pytest

from coterie.core.compile import PLAIN

IN_PLAIN_MODE = {
    "test_packet.py",
    "test_gate.py",
    "test_health.py",
    "test_state.py",
    "test_node.py",
    "test_chaos.py",
    "test_metrics.py",
    "test_commands.py",
    "test_watch.py",
    "test_peer_tables.py",
    "test_bulletins.py",
    "test_office.py",
    "test_amend.py",
    "test_operations.py",
    "test_audit_log.py",
    "test_joining.py",
    "test_networks.py",
}


def pytest_pycollect_makemodule(module_path, parent):
    if module_path.name in IN_PLAIN_MODE and not PLAIN:
        return InPlainMode.from_parent(parent, path=module_path)
    return None


class InPlainMode(pytest.File):
    def collect(self):
        yield Rerun.from_parent(self, name="in_plain_mode")


class Rerun(pytest.Item):
    def runtest(self):
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--durations=5"]
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
        done = subprocess.run(
            [*command, "-m", self.config.getoption("markexpr"), str(self.path)],
            env=inherited | {"COTERIE_PLAIN": "1"},
            cwd=self.config.rootpath,
            capture_output=True,
            text=True,
            timeout=600,
        )
        self.add_report_section("call", "plain mode", done.stdout)
        if done.returncode not in (0, 5):  # 5: the marks leave nothing to do
            raise PlainModeError(done.stdout + done.stderr)

    def repr_failure(self, excinfo):
        return str(excinfo.value) if excinfo.errisinstance(PlainModeError) else super().repr_failure(excinfo)

    def reportinfo(self):
        return self.path, 0, f"{self.path.name} in plain mode"


class PlainModeError(Exception):
    pass


# -- for tests of transports ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    from tls_people import Authority

    return Authority(tmp_path_factory.mktemp("group") / "ca")


@pytest.fixture(scope="module")
def other_authority(tmp_path_factory):
    from tls_people import Authority

    return Authority(tmp_path_factory.mktemp("strangers") / "ca")


@pytest.fixture
def closing():
    """Closes what is entered in it, also when the test fails."""
    with contextlib.ExitStack() as stack:
        yield lambda thing: stack.enter_context(contextlib.closing(thing))


@pytest.fixture
def people(authority, closing):
    """Opens transports: ``people("ann", "bob")`` admit each other and are linked."""
    from tls_people import opened

    return lambda *names, **options: opened(authority, closing, names, **options)


@pytest.fixture
def bare(closing):
    """Connects as somebody might who does not run this program."""
    from tls_people import Bare

    return lambda endpoint, credentials, **options: closing(Bare(endpoint, credentials, **options))
