"""Agents that leave, rows that arrive: the changed graph, data and problem against ones made afresh."""

from __future__ import annotations

import datetime as dt
import pickle

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

import coterie as ct
from coterie.errors import DataError, GraphError, MismatchError, ParameterError
from references import assert_same_rows

quick = settings(deadline=None, derandomize=True, max_examples=40)


def random_graph(rng, n):
    W = np.triu(rng.uniform(0.1, 2.0, (n, n)) * (rng.random((n, n)) < 0.5), 1)
    return ct.Graph(W + W.T)


# --------------------------------------------------------------------------------------- Graph.without


@quick
@given(st.integers(0, 1000), st.integers(1, 9), st.data())
def test_who_goes_loses_row_and_column(seed, n, data):
    graph = random_graph(np.random.default_rng(seed), n)
    gone = data.draw(st.lists(st.integers(0, n - 1), max_size=n))  # possibly twice
    W = graph.W.toarray()
    W[gone] = 0.0
    W[:, gone] = 0.0
    smaller = graph.without(gone)
    assert np.array_equal(smaller.W.toarray(), W)
    assert smaller == ct.Graph(W)
    assert smaller.isolated[gone].all()


def test_nobody_goes_and_all_go():
    graph = ct.graphs.ring(5)
    assert graph.without([]) == graph
    assert graph.without(range(5)) == ct.graphs.empty(5)
    assert graph.without(np.array([1, 2], dtype=np.uint8)).n_edges == 2
    assert graph.n_edges == 5  # and the graph itself is what it was


@pytest.mark.parametrize(
    ("agents", "message"),
    [
        ([0, 5], "agents holds 5: the agents are 0 to 4"),
        ([-1], "agents holds -1: the agents are 0 to 4"),
        ([0.0], r"shape \(1,\) and type float64: expected a list of agents' integers"),
        ([True, False, True, True, True], "type bool"),
        (3, r"shape \(\)"),
        ([[0]], r"shape \(1, 1\)"),
        (["a"], "type <U1"),
    ],
)
def test_only_agents_can_go(agents, message):
    with pytest.raises(ParameterError, match=message):
        ct.graphs.ring(5).without(agents)


# ------------------------------------------------------------------------------------ AgentData.with_rows

MEMBERS = {
    "strings": ["bo", "anna", "cy"],
    "integers": [7, 3, 0],
    "tuples": [("Lyon", 3), ("Lyon", 1), ("Nice", 0)],
    "dates": [dt.date(2020, 1, 2), dt.date(2020, 1, 1), dt.date(2021, 1, 1)],
    "timestamps": [pd.Timestamp("2020-01-02"), pd.Timestamp("2020-01-01"), pd.Timestamp("2021-01-01")],
    "mixed": [1, "1", (1,)],
}


def stored(X, kind):
    return sparse.csr_array(X) if kind == "sparse" else X


@pytest.mark.parametrize("ids", MEMBERS)
@pytest.mark.parametrize("old_kind", ["dense", "sparse"])
@pytest.mark.parametrize("new_kind", ["dense", "sparse"])
@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("counts", [(6, 5), (0, 4), (5, 0)])
def test_rows_arrive_as_if_they_had_been_there(ids, old_kind, new_kind, labelled, counts):
    members = MEMBERS[ids]
    rng = np.random.default_rng(4)
    (X, y, who), (more, labels, whose) = (
        (
            np.where(rng.random((m, 2)) < 0.6, rng.normal(size=(m, 2)), 0.0),
            rng.normal(size=m) if labelled else None,
            [members[k] for k in rng.integers(0, 2, m)],  # the third has no rows
        )
        for m in counts
    )
    data = ct.AgentData(stored(X, old_kind), y, who, members)
    bigger = data.with_rows(stored(more, new_kind), labels, agents=whose)
    both = None if y is None else np.concatenate([y, labels])
    afresh = ct.AgentData(stored(np.concatenate([X, more]), old_kind), both, who + whose, members)
    assert_same_rows(bigger, afresh)
    assert bigger.is_sparse == afresh.is_sparse
    assert data.n_rows == counts[0]  # which has not changed
    # And agent by agent: the old rows, then the new ones.
    for member in members:
        was, came = np.array([a == member for a in who], bool), np.array([a == member for a in whose], bool)
        rows, values = bigger.rows_of(member)
        np.testing.assert_array_equal(
            rows.toarray() if bigger.is_sparse else rows, np.concatenate([X[was], more[came]])
        )
        if labelled:
            np.testing.assert_array_equal(values, np.concatenate([y[was], labels[came]]))


def test_what_arrives_is_stored_like_the_rest():
    data = ct.AgentData(sparse.csr_array(np.eye(3)), agents=["b", "a", "b"])
    bigger = data.with_rows(sparse.coo_array(([1.0, 2.0], ([0, 0], [2, 2])), shape=(1, 3)), agents=["a"])
    assert bigger.is_sparse
    assert bigger.X.has_canonical_format
    assert bigger.X[1, 2] == 3.0  # duplicates add up, as in the constructor
    assert not bigger.X.data.flags.writeable
    dense = ct.AgentData(np.eye(3), [1, 2, 3]).with_rows(np.ones((2, 3)), [True, False], agents=[0, 0])
    assert dense.X.flags.c_contiguous
    assert not dense.X.flags.writeable
    assert not dense.y.flags.writeable
    assert dense.y.tolist() == [1.0, 2.0, 3.0, 1.0, 0.0]
    assert_same_rows(pickle.loads(pickle.dumps(dense)), dense)


def test_rows_arrive_twice_after_others_were_dropped_and_agents_renumbered():
    data = ct.AgentData([[1.0], [2.0], [3.0], [4.0]], agents=["a", "b", "a", "c"])
    data = data.restrict([True, True, False, True]).relabel([2, 0, 1])
    data = data.with_rows([[5.0], [6.0]], agents=["b", "c"]).with_rows([[7.0]], agents=["b"])
    assert data.members == ("c", "a", "b")
    assert data.X.ravel().tolist() == [4.0, 6.0, 1.0, 2.0, 5.0, 7.0]
    out = np.empty(6)
    out[data.origin] = data.X.ravel()
    assert out.tolist() == [1.0, 2.0, 4.0, 5.0, 6.0, 7.0]


def test_frames_arrive_by_name():
    frame = pd.DataFrame({"who": ["bo", "anna"], "age": [31, 27], "fee": [1.0, 2.0], "ill": [True, False]})
    data = ct.AgentData(frame, y="ill", agents="who")
    bigger = data.with_rows(frame.assign(age=[1, 2]), y="ill", agents="who")
    assert bigger.feature_names == ("age", "fee")
    assert bigger.X[:, 0].tolist() == [27.0, 2.0, 31.0, 1.0]
    assert data.with_rows([[9.0, 9.0]], [1], agents=["bo"]).feature_names == ("age", "fee")
    with pytest.raises(DataError, match="column 0 of X is 'fee', expected 'age'"):
        data.with_rows(frame[["who", "fee", "age", "ill"]], y="ill", agents="who")


@pytest.mark.parametrize(
    ("X", "y", "agents", "message"),
    [
        ([[1.0, 2.0]], [1], ["zoe"], r"row 0 \(agent 'zoe'\): this agent is not among members="),
        ([[1.0, 2.0], [1.0, 2.0]], [1, 1], ["bo", None], "agents: the id at row 1 is missing"),
        ([[1.0, 2.0]], [1], ["bo", "bo"], "agents has 2 ids for 1 rows"),
        ([[1.0, 2.0]], [1], "who", "the column name 'who' needs a DataFrame"),
        ([[1.0]], [1], ["bo"], "X has 1 columns for 2 features; one per feature is needed"),
        ([[1.0, 2.0, 3.0]], [1], ["bo"], "X has 3 columns for 2 features"),
        ([1.0, 2.0], [1], ["bo"], "X must be 2-D"),
        ([["a", "b"]], [1], ["bo"], "X holds text, such as 'a'"),
        ([[1.0, 2.0]], None, ["bo"], "y is missing; the rows of this data have labels"),
        ([[1.0, 2.0]], [1, 2], ["bo"], "y has 2 labels for 1 rows"),
        ([[1.0, 2.0], [0.0, np.nan]], [1, 2], ["anna", "bo"], r"row 1 \(agent 'bo'\): column 1 of X is nan"),
        ([[1.0, np.inf]], [1], ["anna"], r"row 0 \(agent 'anna'\): column 1 of X is inf"),
        (sparse.csr_array([[1.0, np.nan]]), [1], ["anna"], r"row 0 \(agent 'anna'\): column 1 of X is nan"),
        ([[1.0, 2.0]], [np.nan], ["anna"], r"row 0 \(agent 'anna'\): the label is nan"),
    ],
)
def test_what_cannot_arrive(X, y, agents, message):
    data = ct.AgentData([[1.0, 0.0], [2.0, 0.0]], [1, 2], agents=["bo", "anna"])
    with pytest.raises(DataError, match=message):
        data.with_rows(X, y, agents=agents)


def test_labels_do_not_arrive_where_there_are_none():
    with pytest.raises(DataError, match="y is given, but the rows of this data have no labels; leave it out"):
        ct.AgentData([[1.0]], agents=["bo"]).with_rows([[1.0]], [1.0], agents=["bo"])


# -------------------------------------------------------------------------------------------- Problem.on

PER_AGENT = np.array([0.4, 0.0, 0.9, 0.3, 1.0])
RECIPES = {
    "collaborative": ("collaborative", {"mu": 0.7, "ridge": 0.1}),
    "collaborative 1/m": ("collaborative", {"mu": 0.7, "ridge": "1/m"}),
    "collaborative given": ("collaborative", {"loss": "squared", "ridge": PER_AGENT}),
    "personalized": ("personalized", {}),
    "personalized squared": ("personalized", {"loss": ct.Squared(), "mu": 3.0, "ridge": 0.2}),
    "personalized alike": ("personalized", {"confidence": None}),
    "personalized given": ("personalized", {"mu": 0.3, "ridge": PER_AGENT[::-1], "confidence": PER_AGENT.tolist()}),
    "separate": ("separate", {"ridge": 0.3}),
    "separate 1/m": ("separate", {"loss": ct.SmoothHinge(0.5), "ridge": "1/m"}),
    "separate hinge": ("separate", {"loss": "hinge", "ridge": PER_AGENT}),
}


def make(recipe, data, graph, order=slice(None)):
    """A problem made afresh; what is given for each agent, in another order."""
    constructor, options = RECIPES[recipe]
    turned = {
        name: np.asarray(value)[order] if isinstance(value, list | np.ndarray) else value
        for name, value in options.items()
    }
    return getattr(ct.Problem, constructor)(data, graph, **turned)


def arrays(seed, sizes=(3, 1, 0, 4, 2), kind="dense"):
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(sum(sizes), 2)), rng.choice([-1.0, 1.0], sum(sizes))
    data = ct.AgentData(stored(X, kind), y, np.repeat(list("abcde"), sizes), members=list("abcde"))
    return data, random_graph(rng, 5)


def arrived(data, seed=8):
    rng = np.random.default_rng(seed)
    who = list("cababeb")
    return data.with_rows(rng.normal(size=(7, 2)), rng.choice([-1.0, 1.0], 7), agents=who)


def assert_alike(problem, afresh):
    for name in ("loss_weight", "a", "importance", "ridge", "row_weight", "start", "labels", "determined"):
        np.testing.assert_array_equal(getattr(problem, name), getattr(afresh, name), err_msg=name)
    for name in ("smooth", "scaled", "mean", "name", "loss", "members", "graph", "p"):
        assert getattr(problem, name) == getattr(afresh, name), name
    theta = np.random.default_rng(0).normal(size=(problem.n, problem.p))
    assert problem.value(theta) == afresh.value(theta)
    np.testing.assert_array_equal(problem.gradient(theta), afresh.gradient(theta))
    np.testing.assert_array_equal(problem.solve(), afresh.solve())
    np.testing.assert_array_equal(problem.local(), afresh.local())


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_on_is_the_constructor_again(recipe, kind):
    data, graph = arrays(0, kind=kind)
    problem = make(recipe, data, graph)
    later, fewer = arrived(data), graph.without([1, 3])
    assert_alike(problem.on(graph=fewer), make(recipe, data, fewer))
    assert_alike(problem.on(later), make(recipe, later, graph))
    assert_alike(problem.on(later, fewer), make(recipe, later, fewer))
    assert_alike(problem.on(graph=fewer).on(data=later), make(recipe, later, fewer))
    assert_alike(problem.on(later, fewer).on(data, graph), make(recipe, data, graph))
    assert_alike(problem.on(), make(recipe, data, graph))


@pytest.mark.parametrize("recipe", RECIPES)
def test_renamed_agents_take_their_numbers_along(recipe):
    data, graph = arrays(1)
    later, fewer = arrived(data), graph.without([0])
    order = np.array([3, 0, 4, 2, 1])
    renamed = make(recipe, data, graph).relabel(order)
    assert_alike(renamed, make(recipe, data.relabel(order), graph.relabel(order), order))
    assert_alike(
        renamed.on(later.relabel(order), fewer.relabel(order)),
        make(recipe, later.relabel(order), fewer.relabel(order), order),
    )
    back = np.argsort(order)
    assert_alike(renamed.relabel(back).on(later, fewer), make(recipe, later, fewer))


def test_words_become_other_numbers_on_other_data():
    data, graph = arrays(2)
    problem = ct.Problem.personalized(data, graph, mu=2.0)
    later = problem.on(arrived(data))
    np.testing.assert_allclose(problem.loss_weight, 2.0 * np.array([3, 1, 4e-9, 4, 2]) / 4)
    np.testing.assert_allclose(later.loss_weight, 2.0 * np.array([5, 4, 1, 4, 3]) / 5)
    np.testing.assert_allclose(problem.ridge, [1 / 3, 1, 0, 1 / 4, 1 / 2])
    np.testing.assert_allclose(later.ridge, [1 / 5, 1 / 4, 1, 1 / 4, 1 / 3])


@pytest.mark.parametrize("confidence", [None, PER_AGENT])
def test_propagation_on_another_graph(confidence):
    rng = np.random.default_rng(6)
    models, graph, other = rng.normal(size=(5, 2)), random_graph(rng, 5), random_graph(rng, 5)
    problem = ct.Problem.propagation(models, graph, 0.8, confidence)
    assert_alike(problem.on(graph=other), ct.Problem.propagation(models, other, 0.8, confidence))
    # The closed form MP (4), for what is left of a graph: D - W + mu D C against mu D C models.
    left = problem.on(graph=ct.graphs.ring(5))
    C = np.diag(np.ones(5) if confidence is None else confidence)
    pull = 0.25 * 2.0 * C
    expected = np.linalg.solve(left.graph.laplacian().toarray() + pull, pull @ models)
    np.testing.assert_allclose(left.solve(), expected, atol=1e-9)


def test_propagation_has_models_and_no_rows():
    problem = ct.Problem.propagation(np.eye(3), ct.graphs.ring(3))
    more = problem.data.with_rows([[0.0, 0.0, 0.0]], agents=[1])
    for changed in (problem, problem.relabel([2, 0, 1]), problem.on(graph=ct.graphs.path(3))):
        with pytest.raises(MismatchError, match=r"data of Problem\.propagation are its models"):
            changed.on(more)


def test_a_problem_of_ones_own():
    data, graph = arrays(3)
    loss_weight = PER_AGENT.copy()
    options = {"smooth": 0.3, "scaled": False, "mean": True, "name": "mine"}
    problem = ct.Problem(data, graph, ct.Logistic(), loss_weight=loss_weight, ridge="1/m", **options)
    loss_weight[:] = np.nan  # the problem has its own copy
    later, fewer = arrived(data), graph.without([4])
    afresh = ct.Problem(later, fewer, ct.Logistic(), loss_weight=PER_AGENT, ridge="1/m", **options)
    assert_alike(problem.on(later, fewer), afresh)
    order = [4, 3, 2, 1, 0]
    assert_alike(problem.relabel(order).on(later.relabel(order), fewer.relabel(order)).relabel(order), afresh)
    sized = ct.Problem(data, graph, ct.Logistic(), loss_weight=2.0, ridge=0.1, confidence="size", **options)
    np.testing.assert_allclose(sized.on(later).loss_weight, 2.0 * later.sizes / 5)


def test_location_problems_take_further_points():
    data = ct.AgentData([[0.0], [4.0]], agents=["a", "b"])
    problem = ct.Problem.separate(data, ct.graphs.empty(2), loss=ct.Location(ct.Squared()))
    assert problem.on(data.with_rows([[2.0]], agents=["a"])).solve().ravel().tolist() == [1.0, 4.0]


def test_other_columns_are_other_data():
    data, graph = arrays(5)
    problem = make("personalized", data, graph)
    assert_alike(problem.on(data.append_column()), make("personalized", data.append_column(), graph))


def test_a_pickled_problem_remembers_its_recipe():
    data, graph = arrays(7)
    problem = pickle.loads(pickle.dumps(make("personalized", data, graph)))
    assert_alike(problem.on(arrived(data)), make("personalized", arrived(data), graph))


DATA, GRAPH = arrays(11)
PROBLEM = make("personalized", DATA, GRAPH)


@pytest.mark.parametrize(
    ("error", "message", "change"),
    [
        (GraphError, "the graph has 4 agents and the data 5", {"graph": ct.graphs.ring(4)}),
        (ParameterError, "needs a Graph", {"graph": np.zeros((5, 5))}),
        (ParameterError, "needs an AgentData; found ndarray", {"data": np.zeros((5, 2))}),
        (
            DataError,
            "agent number 0 of the new data is 'b', and 'a' of the problem",
            {"data": DATA.relabel([1, 0, 2, 3, 4])},
        ),
        (
            DataError,
            "the new data has 2 agents and the problem 5",
            {"data": ct.AgentData(np.eye(2), [1, -1], agents=["a", "b"])},
        ),
        (DataError, "needs labels", {"data": DATA.with_labels(None)}),
        (DataError, "takes labels -1 or", {"data": DATA.with_labels(np.arange(10))}),
    ],
)
def test_what_a_problem_cannot_be_moved_to(error, message, change):
    with pytest.raises(error, match=message):
        PROBLEM.on(**change)
