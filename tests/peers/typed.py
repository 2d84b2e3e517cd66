"""Commands of groups and peers, as people type them."""

import json

from typer.testing import CliRunner

from coterie.cli.peers import app


def typed(*arguments, code=0):
    """What people see."""
    result = CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.output


def said(*arguments, code=0):
    """What programs read."""
    return json.loads(typed(*arguments, "--json", code=code))
