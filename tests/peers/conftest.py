"""Tests of real peers run in plain mode, as real peers do: in a process of its own, which compiles nothing.

One of these files is one test here. For a single test of it:

    COTERIE_PLAIN=1 pytest tests/peers/test_node.py -k ...
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from coterie.core.compile import PLAIN

IN_PLAIN_MODE = {"test_packet.py", "test_gate.py", "test_state.py", "test_node.py", "test_chaos.py", "test_metrics.py"}


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
