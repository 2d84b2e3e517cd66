"""The page of a report: what is in the file, against the report and the model, for every estimator."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib import resources

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from typer.testing import CliRunner

import coterie as ct
from coterie.cli import main as cli
from coterie.errors import FileError, ParameterError
from coterie.estimators.page import assembled
from coterie.estimators.page import contents as documents
from coterie.estimators.page.curves import COVERAGE
from coterie.estimators.page.places import _components
from coterie.estimators.report import Report
from coterie.estimators.tuning import folds as deal
from coterie.graphs.layout import MAX_ALL_PAIRS_AGENTS, layout

pytestmark = [
    pytest.mark.compiled,
    pytest.mark.filterwarnings(
        "ignore:the objective is more than tol",
        "ignore:stopped before the objective",
        "ignore:rows to predict lie outside",
    ),
]

NASTY = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"quoted\" & 'single' `back`",
    "<!-- <script>",
    "</script alert(1) ",
    "<!--<script ",
    "{{data}} {{script}}",
    "&lt;b&gt; &amp;",
    "line\u2028separator\nand newline",
    "emoji \U0001f600 ünïcode עברית",
    "]]>\\u003c",
    '=1+1,"csv"',
    "../#agent=x?y&z",
]


def rows(n=8, each=14, columns=3, seed=0):
    """Rows of agents whose models differ: X, numbers, agents."""
    rng = np.random.default_rng(seed)
    codes = np.repeat(np.arange(n), each)
    X = rng.normal(size=(len(codes), columns))
    theta = np.arange(columns) + rng.normal(size=(n, columns))
    y = np.sum(X * theta[codes], axis=1) + rng.normal(size=n)[codes] + 0.4 * rng.normal(size=len(codes))
    return X, y, np.array([f"agent {k}" for k in range(n)])[codes]


def classes_of(y, count=2):
    return np.array(["no", "yes", "maybe"])[np.digitize(y, [0.0] if count == 2 else [-1.0, 1.0])]


ESTIMATORS = {
    "pooling": lambda: ct.CollaborativeRegressor(design="linear"),
    "curves": lambda: ct.CollaborativeRegressor(design="additive"),
    "counts": lambda: ct.CollaborativeRegressor(loss="poisson", design="linear"),
    "tied pooling": lambda: ct.CollaborativeRegressor(design="linear", graph="knn", n_neighbors=2),
    "pooling of classes": lambda: ct.CollaborativeClassifier(design="linear"),
    "pooling of 3 classes": lambda: ct.CollaborativeClassifier(design="linear"),
    "over a graph": lambda: ct.CollaborativeRegressor(method="cd"),
    "3 classes over a graph": lambda: ct.CollaborativeClassifier(method="cd"),
    "local": lambda: ct.CollaborativeRegressor(method="local"),
    "boosted": lambda: ct.BoostedRegressor(base=12, max_iter=60, tol=1.0),
    "boosted classes": lambda: ct.BoostedClassifier(base=12, max_iter=60, tol=1.0),
    "related": lambda: ct.RelationshipRegressor(tol=1e-2),
    "3 related classes": lambda: ct.RelationshipClassifier(tol=1e-2),
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A model, its report and its page, for every estimator; each is made once."""
    made = {}

    def page(name):
        if name not in made:
            X, y, agents = rows()
            model = ESTIMATORS[name]()
            if "classes" in name:
                y = classes_of(y, 3 if "3" in name else 2)
            elif name == "counts":
                y = np.random.default_rng(0).poisson(np.exp(0.3 * X[:, 0]))
            path = tmp_path_factory.mktemp("pages") / "report.html"
            report = model.fit(X, y, agents=agents).report(path, folds=2)
            made[name] = model, report, path
        return made[name]

    return page


class Tags(HTMLParser):
    """Which tags there are, and what is in those that hold code or data."""

    def __init__(self, text):
        super().__init__()
        self.found, self.inside, self.parts, self.attributes = [], None, [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append(tag)
        self.attributes += [(tag, *pair) for pair in attributes]
        self.inside = tag if tag in ("script", "style") else None
        if self.inside:
            self.parts.append([tag, dict(attributes), ""])

    def handle_endtag(self, tag):
        self.inside = None

    def handle_data(self, data):
        if self.inside:
            self.parts[-1][2] += data


def read(path):
    """The document in a page."""
    tags = Tags(path.read_text(encoding="utf-8"))
    return json.loads(next(text for tag, attributes, text in tags.parts if attributes.get("id") == "data"))


def close(found, expected, rel=6e-5):
    """Numbers with five digits, None for what is none."""
    values = np.array([np.nan if value is None else value for value in found], dtype=float)
    np.testing.assert_allclose(values, np.asarray(expected, dtype=float).ravel(), rtol=rel, atol=1e-12)


# -- what it says -----------------------------------------------------------------------------------------------------


@pytest.mark.compiled
@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_page_says_what_the_report_says(pages, name):
    model, report, path = pages(name)
    page = read(path)
    assert page["agents"]["name"] == list(model.agents_)
    table = report.gains.set_index("agent").loc[list(model.agents_)]
    assert page["agents"]["rows"] == table["rows"].tolist()
    for error in ("alone", "one_model", "together"):
        close(page["agents"][error], table[error])
    told = report.to_dict()
    for name_of, gain in told["summary"]["gains"].items():
        for key, value in gain.items():
            assert page["summary"]["gains"][name_of][key] == pytest.approx(value, rel=6e-5)
    for table_name in ("features", "choices"):
        if told[table_name] is None:
            assert page[table_name] is None
            continue
        for column, values in page[table_name].items():
            for found, line in zip(values, told[table_name], strict=True):
                assert found == (
                    pytest.approx(line[column], rel=6e-5) if isinstance(line[column], float) else line[column]
                )
    assert page["notes"] == report.notes
    assert page["columns"] == report.columns
    assert page["sent"]["words"] == report.sent["words"]
    assert page["text"] == repr(report)
    assert page["headline"][0]["against"] == "alone"


@pytest.mark.parametrize("name", ESTIMATORS)
def test_models_on_a_page_are_those_of_the_estimator(pages, name):
    model, report, path = pages(name)
    page = read(path)
    n = len(model.agents_)
    X = rows()[0]
    outputs = model.coef_.shape[1] if model.coef_.ndim == 3 else 1
    assert len(page["outputs"]) == outputs
    for k, output in enumerate(page["outputs"]):
        coefficients = model.coef_.reshape(n, outputs, -1)[:, k]
        found = {feature["name"]: feature for feature in output["features"]}
        assert list(found)[-1] == "intercept"
        if "boosted" in name or name == "curves":
            assert {feature["kind"] for feature in found.values()} == {
                "intercept",
                "curve" if name == "curves" else "steps",
            }
        else:
            for j, column in enumerate(("x0", "x1", "x2")):
                close(found[column]["own"], coefficients[:, j])
            level = model.intercept_.reshape(n, outputs)[:, k] + coefficients @ X.mean(axis=0)
            close(found["intercept"]["own"], level, rel=1e-4)
        assert (found["intercept"]["half"] is not None) == (report.outliers is not None)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_everybody_has_a_place_and_somebody_near(pages, name):
    model, _, path = pages(name)
    drawn, n = read(path)["map"], len(model.agents_)
    assert max(map(abs, drawn["x"] + drawn["y"])) == pytest.approx(1.0)
    near = np.reshape(drawn["near"], (n, drawn["nearest"]))
    assert near.shape[1] > 0 or drawn["kind"] == "graph"
    assert not np.any(near == np.arange(n)[:, None])
    graph = getattr(model, "graph_", None)
    if graph is not None and graph.n_edges:
        assert drawn["kind"] == "graph"
        i, j, weight = graph.edges()
        assert [drawn["edges"][0], drawn["edges"][1]] == [i.tolist(), j.tolist()]
        close(drawn["edges"][2], weight, rel=6e-3)
        heaviest = [
            graph.peer[a:b][np.argmax(graph.weight[a:b])]
            for a, b in zip(graph.start[:-1], graph.start[1:], strict=True)
        ]
        assert near[:, 0].tolist() == heaviest
    elif "related" in name:
        assert drawn["kind"] == "correlations"
        C = np.atleast_3d(model.correlation_.T).mean(axis=2) if "3" in name else model.correlation_
        np.fill_diagonal(C := C.copy(), 0.0)
        np.testing.assert_allclose(
            np.reshape(drawn["near_by"], near.shape)[:, 0], np.take_along_axis(C, near[:, :1], 1)[:, 0], atol=2e-4
        )
        assert np.allclose(np.abs(np.reshape(drawn["near_by"], near.shape)[:, 0]), np.abs(C).max(axis=1), atol=2e-4)
    else:
        assert drawn["kind"] == "models"
        assert np.all(np.diff(np.reshape(drawn["near_by"], near.shape), axis=1) >= 0.0)


def test_which_way_is_up_does_not_depend_on_rounding():
    """Directions have no sign of their own; whoever is furthest out is up, and to the right."""
    Z = np.random.default_rng(0).normal(size=(40, 6))
    xy = _components(Z)[0]
    for axis in range(2):
        assert xy[np.abs(xy[:, axis]).argmax(), axis] > 0.0
    order = np.random.default_rng(1).permutation(40)
    np.testing.assert_allclose(_components(Z[order])[0], xy[order], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "said"), [("pooling of classes", "class yes"), ("pooling of 3 classes", "class yes against the rest")]
)
def test_what_a_curve_of_classes_shows(pages, name, said):
    assert read(pages(name)[2])["outputs"][-1]["said"] == f"probability of {said}"


def test_curves_are_what_the_model_predicts(pages):
    model, _, path = pages("curves")
    page = read(path)
    output = page["outputs"][0]
    for feature in output["features"][:-1]:
        column = int(feature["name"][1:])
        x, size, k = np.array(feature["x"]), len(feature["common"]), 3
        own = np.array(feature["own"]).reshape(-1, size)
        X = np.zeros((len(x), 3))
        X[:, column] = x
        predicted = model.predict(X, agents=["agent 3"] * len(x))
        drawn = np.array(feature["basis"]) @ own[k]
        np.testing.assert_allclose(drawn - drawn[0], predicted - predicted[0], atol=2e-3)


def test_bands_are_those_of_predictions():
    X, y, agents = rows(columns=1, each=20)
    model = ct.CollaborativeRegressor(design="additive").fit(X, y, agents=agents)
    feature, level = documents.document(model.report(folds=2))["outputs"][0]["features"]
    x, k = np.array(feature["x"]), 2
    mean, std = model.predict(x[:, None], agents=["agent 2"] * len(x), return_std=True)
    half = stats.norm.ppf(0.5 + COVERAGE / 2) * np.sqrt(std**2 - model.noise_**2)
    own = np.array(feature["own"]).reshape(len(model.agents_), -1)
    np.testing.assert_allclose(np.array(feature["basis"]) @ own[k] + level["own"][k], mean, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(np.reshape(feature["band"], (-1, len(x)))[k], half, rtol=1e-2)


@pytest.mark.parametrize("name", ["boosted", "boosted classes"])
def test_steps_are_what_stumps_say(pages, name):
    model, _, path = pages(name)
    for feature in read(path)["outputs"][0]["features"][:-1]:
        column, edges = int(feature["name"][1:]), np.array(feature["x"])
        X = np.zeros((len(edges) - 1, 3))
        X[:, column] = 0.5 * (edges[1:] + edges[:-1])
        said = model.predict if name == "boosted" else model.decision_function
        predicted = said(X, agents=["agent 5"] * len(X))
        own = np.reshape(feature["own"], (len(model.agents_), -1))[5]
        np.testing.assert_allclose(own - own[0], predicted - predicted[0], atol=1e-3)


def test_a_few_rows_are_not_told_as_a_range():
    X, y, agents = rows()
    some = np.concatenate([np.flatnonzero(agents == "agent 0")[:2], np.flatnonzero(agents != "agent 0")])
    model = ct.CollaborativeRegressor(design="linear").fit(X[some], y[some], agents=agents[some])
    for feature in documents.document(model.report(folds=2))["outputs"][0]["features"][:-1]:
        assert feature["low"][0] is feature["high"][0] is None
        assert isinstance(feature["low"][1], float)


# -- gains of other estimators ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["boosted", "related"])
def test_gains_are_errors_of_the_estimator_fitted_anew(pages, name):
    _, report, _ = pages(name)
    X, y, agents = rows()
    codes = np.array([int(agent.split()[1]) for agent in agents])
    fold, predicted = deal(codes, 2, 0, None), np.zeros(len(y))
    for k in range(2):
        model = ESTIMATORS[name]().fit(X[fold != k], y[fold != k], agents=codes[fold != k])
        predicted[fold == k] = model.predict(X[fold == k], agents=codes[fold == k])
    expected = [np.sqrt(np.mean((predicted - y)[codes == k] ** 2)) for k in range(8)]
    np.testing.assert_allclose(report.gains["together"], expected, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize("name", ["boosted classes", "3 related classes", "over a graph", "pooling"])
def test_a_model_from_a_file_takes_the_rows_for_its_gains(pages, name, tmp_path):
    model, report, _ = pages(name)
    bare = ct.load(ct.save(model, tmp_path / "model"))
    without = bare.report(tmp_path / "bare.html")
    assert without.gains is None
    page = read(tmp_path / "bare.html")
    assert page["headline"][0]["text"].startswith(
        "Gains were not measured: a model that was loaded from a file, or fitted on a cluster, has no rows"
    )
    assert "is not known" in page["sent"]["words"][0]
    X, y, agents = rows()
    if "classes" in name:
        y = classes_of(y, 3 if "3" in name else 2)
    again = bare.report(folds=2, X=X, y=y, agents=agents)
    np.testing.assert_allclose(again.gains["together"], report.gains["together"], rtol=1e-6)


def test_a_feature_map_has_gains_but_no_features():
    from sklearn.kernel_approximation import RBFSampler

    X, y, agents = rows(n=4)
    model = ct.RelationshipRegressor(features=RBFSampler(n_components=8, random_state=0), tol=1e-2).fit(
        X, y, agents=agents
    )
    report = model.report(folds=2)
    assert report.features is None
    assert report.gains["alone"].notna().all()
    assert documents.document(report)["outputs"] == []


def test_many_agents_of_a_slow_estimator_are_sampled(monkeypatch):
    from coterie.estimators import gains as measuring

    monkeypatch.setattr(measuring, "MAX_SLOW_SAMPLE_AGENTS", 5)
    X, y, agents = rows(n=12, each=6)
    covariance = np.eye(12) / 12
    report = ct.RelationshipRegressor(covariance=covariance, tol=1e-2).fit(X, y, agents=agents).report(folds=2)
    assert report.gains["together"].notna().sum() == 10  # at least ten are taken
    assert any("a sample of 10 of 12 agents" in note for note in report.notes)


# -- what was sent ----------------------------------------------------------------------------------------------------


def test_what_was_sent_is_that_of_the_run(pages):
    for name in ("over a graph", "boosted classes"):
        model, _, path = pages(name)
        sent = read(path)["sent"]
        assert [sent[key] for key in ("wakes", "messages", "vectors", "bytes")] == [
            model.run_.wakes,
            model.run_.messages,
            model.run_.vectors,
            model.run_.bytes,
        ]
        assert f"{model.run_.vectors:,} vectors" in sent["words"][0]
    model, _, path = pages("3 related classes")
    assert read(path)["sent"]["bytes"] == sum(run.bytes for run in model.run_)
    _, report, path = pages("pooling")
    assert read(path)["sent"]["words"][0].startswith("Nothing was sent")
    assert "What was sent" not in repr(report)
    assert "What was sent" in repr(pages("over a graph")[1])


def test_privacy_that_was_spent_is_told(pages):
    model, _, _ = pages("over a graph")
    learned = model._models
    try:
        model._models = replace(learned, runs=[replace(model.run_, epsilon=0.5, delta=1e-5)])
        page = documents.document(model.report(folds=2))
    finally:
        model._models = learned
    assert page["sent"]["epsilon"] == 0.5
    assert page["sent"]["words"][-1] == "Everything that an agent sent is (0.5, 1e-05)-differentially private."
    assert "No privacy budget was spent" in documents.document(model.report(folds=2))["sent"]["words"][-1]


# -- the file ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nasty(tmp_path_factory):
    """A page whose agents, columns and classes have names that are code."""
    X, y, agents = rows(n=len(NASTY), columns=2)
    frame = pd.DataFrame(X, columns=["<script>alert(2)</script>", '"><b onclick="x">'])
    named = np.array(NASTY, dtype=object)[[int(agent.split()[1]) for agent in agents]]
    labels = np.where(y > 0, "</script>", "<i>&")
    path = tmp_path_factory.mktemp("nasty") / '<b>report & "more".html'
    model = ct.CollaborativeClassifier(design="linear").fit(frame, labels, agents=named)
    model.report(path, folds=2)
    return model, path


def test_names_cannot_break_out_of_the_page(nasty):
    model, path = nasty
    tags = Tags(path.read_text(encoding="utf-8"))
    assert tags.found.count("script") == 2
    assert tags.found.count("style") == 1
    assert "img" not in tags.found
    [written] = [part for _, attributes, part in tags.parts if attributes.get("id") == "data"]
    assert not set("<>&") & set(written)  # nothing that a browser could take for a tag, in whatever state it is
    assert not [attribute for _, attribute, _ in tags.attributes if attribute.startswith("on")]
    page = read(path)
    assert page["agents"]["name"] == list(model.agents_)
    assert sorted(page["agents"]["name"]) == sorted(NASTY)
    assert page["features"]["feature"][0] in ("<script>alert(2)</script>", '"><b onclick="x">', "intercept")
    assert page["summary"]["log_odds_of"] == str(model.classes_[1])


def test_only_what_we_wrote_may_run_and_nothing_is_fetched(nasty):
    text = nasty[1].read_text(encoding="utf-8")
    tags = Tags(text)
    policy = next(
        value for tag, name, value in tags.attributes if tag == "meta" and name == "content" and "default-src" in value
    )
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    for tag, directive in (("script", "script-src"), ("style", "style-src")):
        [content] = [part for name, attributes, part in tags.parts if name == tag and "type" not in attributes]
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert rules[directive] == f"'sha256-{digest}'"
    addresses = [value for _, name, value in tags.attributes if name in ("src", "href", "srcset", "action", "data")]
    assert all(value.startswith("#") for value in addresses)
    code = "".join(part for name, attributes, part in tags.parts if attributes.get("type") != "application/json")
    assert set(re.findall(r"https?://[^\"'\s)]*", code)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(
        r"@import|url\((?!#)|innerHTML|insertAdjacentHTML|document\.write|\beval\b|fetch\(|XMLHttp", code
    )


def test_half_a_character_does_no_harm():
    page = assembled({"title": "half \ud800 </title>", "name": "\ud800"}, "text \ud800")
    page.encode()
    assert '{"title":"half \\ud800 \\u003c/title\\u003e","name":"\\ud800"}' in page
    assert "<title>half ? &lt;/title&gt;" in page


def test_agents_that_look_alike_have_names_of_their_own():
    class Same:
        def __repr__(self):
            return "same"

    names = documents._names((1, "1", (1, 2), "a", Same(), Same()))
    assert names == ["1", "'1'", "(1, 2)", "a", "same", "same (2)"]


def test_a_path_that_cannot_be_written_is_refused_before_the_work(pages, tmp_path):
    model, report, _ = pages("pooling")
    with pytest.raises(FileError, match=r"there is no folder .*nowhere; make it first"):
        model.report(tmp_path / "nowhere" / "report.html", X=1)  # else: X and y go together
    with pytest.raises(FileError, match="it is a folder; name a file in it"):
        model.report(tmp_path, X=1)
    with pytest.raises(ParameterError, match=r"page for a browser; name it report.html"):
        model.report(tmp_path / "report.pdf", X=1)
    with pytest.raises(ParameterError, match=r"path=3 must be a path.*report\(folds=5\)"):
        model.report(3)
    with pytest.raises(TypeError):
        model.report(tmp_path / "report.html", 3)
    assert list(tmp_path.iterdir()) == []
    assert report.save(str(tmp_path / "report.html")) == tmp_path / "report.html"
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_report_stays_as_it_was_when_the_model_is_fitted_anew(tmp_path):
    X, y, agents = rows()
    model = ct.CollaborativeRegressor(design="linear").fit(X, y, agents=agents)
    report = model.report(folds=2)
    before = documents.document(report)
    model.fit(X[:, :1], -y, agents=np.char.add("other ", agents))
    assert documents.document(report) == before


def test_of_very_many_agents_some_are_shown(monkeypatch):
    monkeypatch.setattr(documents, "MAX_PAGE_AGENTS", 9)
    X, y, agents = rows(n=20, each=8)
    y = np.where(agents == "agent 17", y + 40 * X[:, 0], y)
    report = ct.CollaborativeRegressor(design="linear").fit(X, y, agents=agents).report(folds=2)
    page = documents.document(report)
    assert len(page["agents"]["name"]) == len(page["map"]["x"]) == 9
    assert page["agents"]["total"] == 20
    assert max(page["map"]["near"]) < 9
    assert "this page shows 9 of 20 agents" in page["notes"][-1]
    place = page["agents"]["name"].index(page["agents"]["name"][0])
    expected = report.gains.set_index("agent").loc[page["agents"]["name"][place], "together"]
    assert page["agents"]["together"][place] == pytest.approx(expected, rel=6e-5)


def test_a_page_says_what_agents_are_and_what_is_predicted(tmp_path):
    """Whoever is sent the page has not seen the table."""
    X, y, codes = rows()
    table = pd.DataFrame(np.asarray(X), columns=[f"x{j}" for j in range(np.shape(X)[1])]).assign(store=codes)
    given = {"agents": "store"}, {"agents": table["store"]}
    for how in given:
        features = table if how["agents"] is given[0]["agents"] else table.drop(columns="store")
        model = ct.CollaborativeRegressor(design="linear").fit(features, pd.Series(y, name="sales"), **how)
        ct.save(model, tmp_path / "model")
        for told in (model, ct.load(tmp_path / "model")):
            told.report(tmp_path / "a.html", folds=2)
            words = read(tmp_path / "a.html")["explained"]
            assert words.startswith("Each agent is one value of the column “store”")
            assert "“sales”" in words
            assert read(tmp_path / "a.html")["outputs"][0]["said"] == "prediction of “sales”"
    model.fit(np.asarray(X), np.asarray(y), agents=codes).report(tmp_path / "a.html", folds=2)
    page = read(tmp_path / "a.html")
    assert page["explained"].startswith("Each agent is a group of rows, and has a model of its own.")
    assert "one model for all" in page["explained"]


def test_one_agent_and_agents_with_one_row_have_a_page(tmp_path):
    X, y, _ = rows()
    for agents in (None, np.arange(len(y))):
        report = ct.CollaborativeRegressor(design="linear").fit(X, y, agents=agents).report(tmp_path / "a.html")
        assert isinstance(report, Report)
        page = read(tmp_path / "a.html")
        assert page["headline"][0]["text"].startswith("Gains were not measured")
        assert page["explained"].startswith(
            "Each agent" if len(report._model.agents_) > 1 else "All rows belong to one"
        )
        assert all(map(math.isfinite, page["map"]["x"]))


def test_with_many_columns_there_is_a_page_without_intervals(tmp_path):
    rng = np.random.default_rng(0)
    X, agents = rng.normal(size=(120, 160)), np.repeat(np.arange(6), 20)
    report = ct.CollaborativeRegressor().fit(X, X[:, 0] + agents, agents=agents).report(tmp_path / "wide.html", folds=2)
    page = read(tmp_path / "wide.html")
    assert page["tests"] is None
    assert page["outputs"][0]["features"][-1]["half"] is None
    assert len(page["features"]["feature"]) == len(report.features) == 161


def test_inspect_writes_a_page(pages, tmp_path):
    for name in ("pooling", "boosted classes"):
        model, report, _ = pages(name)
        ct.save(model, tmp_path / name)
        page = tmp_path / f"{name}.html"
        result = CliRunner().invoke(cli.app, ["inspect", str(tmp_path / name), "--html", str(page), "--json"])
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["html"] == str(page)
        found = read(page)
        assert found["agents"]["name"] == list(model.agents_)
        if report.outliers is not None:
            close(found["features"]["sd"], report.features["sd"], rel=1e-4)
    result = CliRunner().invoke(
        cli.app, ["inspect", str(tmp_path / "pooling"), "--html", str(tmp_path / "no" / "a.html")]
    )
    assert result.exit_code != 0
    assert "there is no folder" in str(result.exception)


# -- how it looks -----------------------------------------------------------------------------------------------------


def palette():
    """Colours by name: light, dark."""
    css = (resources.files("coterie.estimators.page") / "report.css").read_text()
    return {
        name: (light, dark) for name, light, dark in re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", css)
    }


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


TEXT = ["ink", "quiet", "link", "together", "alone", "stand", "good", "bad", "even"]
TEXT += [f"agent-{k}" for k in range(1, 6)]


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_is_legible(theme):
    colours = {name: pair[theme] for name, pair in palette().items()}
    for text in TEXT:
        for ground in ("page", "panel", "raised", "soft") if text in ("ink", "quiet", "link") else ("panel",):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for text, ground in [
        ("on-link", "link"),
        ("stand", "soft"),
        *((f"{t}", f"{t}-soft") for t in ("good", "bad", "even")),
    ]:
        assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for shape in ("edge", "together", "alone", "one", "stand", "none"):  # lines and points that mean something
        assert contrast(colours[shape], colours["panel"]) >= 3.0, shape


def test_many_tied_agents_are_drawn_near_each_other():
    rng = np.random.default_rng(0)
    spots = rng.normal(size=(MAX_ALL_PAIRS_AGENTS + 200, 2))
    graph = ct.graphs.knn(spots, 5)
    places = layout(graph, np.full(graph.n, 40.0), 0, rng.normal(size=spots.shape))
    i, j, _ = graph.edges()
    tied = np.linalg.norm(places[i] - places[j], axis=1)
    others = np.linalg.norm(places - places[rng.permutation(graph.n)], axis=1)
    assert np.isfinite(places).all()
    assert np.median(tied) < 0.35 * np.median(others)
