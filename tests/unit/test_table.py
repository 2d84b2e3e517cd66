"""The one value that a table becomes on its way into a fit."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import numpy as np
import pandas as pd
import pytest

from coterie.data.columns import Columns
from coterie.data.ids import agent_codes
from coterie.data.table import Table
from coterie.errors import DataError


def visits():
    return pd.DataFrame(
        {"who": ["bo", "ann", "bo", "cy"], "age": [31.0, None, 27.0, 40.0], "colour": ["red", "blue", "blue", "red"]}
    )


def test_a_table_is_what_its_parts_are():
    table = Table.learn(visits(), [1, 2, 3, 4], "who", sample_weight=[1, 1, 2, 0])
    columns, matrix = Columns.learn(visits().drop(columns="who"))
    codes, members = agent_codes(["bo", "ann", "bo", "cy"])
    np.testing.assert_array_equal(table.X, matrix)
    np.testing.assert_array_equal(table.codes, codes)
    np.testing.assert_array_equal(table.y, [1, 2, 3, 4])
    np.testing.assert_array_equal(table.weight, [1.0, 1.0, 2.0, 0.0])
    assert (table.members, table.columns, table.agent_column) == (members, columns, "who")
    with pytest.raises(FrozenInstanceError):
        table.X = matrix


def test_more_rows_are_encoded_in_the_same_way():
    table = Table.learn(visits(), [1, 2, 3, 4], "who")
    number = {member: k for k, member in enumerate(table.members)}
    new = visits().assign(who=["cy", "zoe", "ann", "bo"], colour=["green", "red", "red", "blue"])
    by_name, by_ids = (
        Table.more(X, ids, table.columns, number, column)
        for X, ids, column in ((new, None, "who"), (new.drop(columns="who"), new["who"], None))
    )
    np.testing.assert_array_equal(by_name.codes, [2, -1, 0, 1])  # nobody knows zoe
    np.testing.assert_array_equal(by_name.X, table.columns.apply(new.drop(columns="who")))
    np.testing.assert_array_equal(by_ids.X, by_name.X)
    np.testing.assert_array_equal(by_ids.codes, by_name.codes)


def test_rows_without_ids_are_those_of_the_only_agent():
    only = Table.learn([[1.0], [2.0]], [0, 1])
    assert Table.more([[5.0]], None, only.columns, {0: 0}, None).codes.tolist() == [0]
    two = Table.learn([[1.0], [2.0]], [0, 1], agents=["ann", "bo"])
    with pytest.raises(DataError, match="fitted for 2 agents: pass agents="):
        Table.more([[5.0]], None, two.columns, {"ann": 0, "bo": 1}, None)
    with pytest.raises(DataError, match="agents has 2 ids for 1 rows"):
        Table.more([[5.0]], ["ann", "bo"], two.columns, {"ann": 0, "bo": 1}, None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": None}, "y is missing"),
        ({"y": "agee"}, "no column 'agee'; did you mean 'age'?"),
        ({"y": "age"}, r"row 1 \(agent 'ann'\): the label is missing"),
        ({"y": [1, 2, 3]}, "y has 3 labels for 4 rows"),
        ({"y": [1.0, 2.0, np.nan, 4.0]}, r"row 2 \(agent 'bo'\): the label is missing"),
        ({"y": [1.0, 2.0, np.nan, np.nan]}, r"row 2 \(agent 'bo'\) and 1 more: the label is missing"),
        ({"agents": ["a", "b"]}, "agents has 2 ids for 4 rows"),
        ({"members": ["ann", "bo"]}, r"row 3 \(agent 'cy'\): this agent is not among members="),
        ({"missing": "error"}, r"row 1 \(agent 'ann'\): column 'age' is missing"),
        ({"sample_weight": [1, 1, 1, -1]}, "sample_weight must be finite and not negative"),
        ({"sample_weight": [0, 0, 0, 0]}, "sample_weight is zero for all rows"),
    ],
)
def test_what_is_refused(changes, message):
    given = {"X": visits(), "y": [1, 2, 3, 4], "agents": "who"} | changes
    if isinstance(given["agents"], list):
        given["X"] = visits().drop(columns="who")
    with pytest.raises(DataError, match=message):
        Table.learn(**given)
