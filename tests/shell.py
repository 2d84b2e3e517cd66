"""Commands of models, as people type them: in a process of their own, or in this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from coterie.cli.main import app
from coterie.errors import CoterieError


def run(*arguments, code=0):
    """The command in a process of its own: standard output, standard error. One that fails needs nothing compiled."""
    environment = os.environ | {"COLUMNS": "200"} | ({"COTERIE_PLAIN": "1"} if code else {})
    command = [sys.executable, "-m", "coterie", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


def invoke(*arguments, code=0):
    """The command in this process: its json."""
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"], catch_exceptions=False)
    assert result.exit_code == code
    return json.loads(result.stdout)


def refused(*arguments):
    """What the command says before it ends with code 3, which it is given in one place for all such errors."""
    with pytest.raises(CoterieError) as caught:
        CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False)
    return str(caught.value)


def fitting(table, output, *options):
    """The words of ``coterie fit`` for whether users bought something."""
    return ["fit", table, "--agent", "user", "--target", "bought", "-o", output, *options]


def fit(table, output, *options):
    return invoke(*fitting(table, output, *options))


def bought(task, path):
    """A csv file of the training rows of a task of two classes, with users for agents: its frame."""
    users = np.array([f"user {k}" for k in range(task.train.n)])[task.train.owner]
    frame = pd.DataFrame(task.train.X, columns=list("abc"[: task.train.p]))
    frame = frame.assign(user=users, bought=np.where(task.train.y > 0, "yes", "no"))
    frame.to_csv(path, index=False)
    return frame
