"""The command ``coterie audit``."""

import pytest
from typer.testing import CliRunner

from coterie.cli import audit as cli
from coterie.cli.main import app
from coterie.engines.peer import Peer
from coterie.errors import ParameterError
from shell import invoke


def test_an_audit_from_the_shell():
    found = invoke("audit", "--method", "cd", "--wakes-per-agent", 2, "--features", 16, "--runs", 32)
    assert found["passed"] is True
    assert {row["scenario"] for row in found["table"]} >= {"restart", "memory", "noise reuse", "huge norm", "dense"}
    assert all(row["leak"] <= row["claimed"] for row in found["table"])
    assert max(row["lower"] for row in found["table"]) == found["epsilon_lower"]


@pytest.mark.slow
def test_the_table_of_an_audit_says_what_was_seen_in_each_scenario():
    given = ["--wakes-per-agent", "2", "--features", "16", "--runs", "32", "--epsilon", "3"]
    lines = CliRunner().invoke(app, ["audit", *given], catch_exceptions=False).stdout.splitlines()
    rows = {cells[1].strip(): cells[2:6] for line in lines if len(cells := line.split("│")) == 7}
    assert rows.keys() >= {"restart", "memory", "noise reuse", "huge norm", "dense"}
    for _, seen, claimed, promise in rows.values():
        assert 0.0 <= float(seen) <= float(claimed) == 3.0
        assert promise.strip() == "not broken"


class Leaky(Peer):
    """An agent whose messages are its data."""

    def wake(self, dice):
        data = self.arrays.rows.values.T @ self.arrays.labels
        return [message._replace(kind=0, text=data) for message in super().wake(dice)]


@pytest.mark.slow
def test_a_failed_audit_has_an_exit_code_of_its_own(monkeypatch):
    audit = cli.audit_messages
    monkeypatch.setattr(cli, "audit_messages", lambda method, **options: audit(method, agent=Leaky, **options))
    given = ["--wakes-per-agent", "2", "--features", "16", "--runs", "32"]
    result = CliRunner().invoke(app, ["audit", *given], catch_exceptions=False)
    assert result.exit_code == cli.AUDIT_FAILED
    assert "FAILED" in result.stdout
    assert "broken: at epsilon" in " ".join(result.stdout.split())


def test_bad_numbers():
    with pytest.raises(ParameterError, match="epsilon = -1"):
        CliRunner().invoke(app, ["audit", "--epsilon", "-1"], catch_exceptions=False)
