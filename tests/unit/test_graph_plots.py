"""What the figures of graphs and of traces show."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.figure import Figure

import coterie as ct
from coterie.errors import ParameterError


@pytest.fixture(scope="module")
def cluster():
    return np.random.default_rng(0).permutation(np.repeat([0, 1, 2], [4, 6, 10]))


@pytest.fixture(scope="module")
def graph(cluster):
    """Clusters, connected within and not between, and three agents without edges."""
    random = np.random.default_rng(1)
    W = np.where(cluster[:, None] == cluster, random.random((20, 20)), 0.0)
    W = np.triu(W, 1)
    W[:3], W[:, :3] = 0.0, 0.0
    return ct.Graph(W + W.T)


def drawn(figure, kind):
    return [artist for artist in figure.axes[0].collections if isinstance(artist, kind)]


def parts(figure):
    [edges], [discs] = drawn(figure, LineCollection), drawn(figure, PathCollection)
    FigureCanvasAgg(figure).draw()  # colours are mapped, and axes placed, when drawn
    return edges, discs


def test_every_edge_is_a_line_between_its_agents(graph):
    edges, discs = parts(ct.plots.edges(graph))
    places = np.asarray(discs.get_offsets())
    assert places.shape == (20, 2)
    i, j, weight = graph.edges()
    order = np.argsort(weight)
    assert len(edges.get_segments()) == graph.n_edges
    np.testing.assert_allclose(edges.get_segments(), np.stack([places[i], places[j]], axis=1)[order])
    # Strong ones are darker, wider and on top.
    darkness = 1.0 - edges.get_colors()[:, 0]  # in the order of drawing: the last is on top
    assert np.all(np.diff(darkness) > 0)
    assert np.all(np.diff(edges.get_linewidths()) > 0)
    assert discs.get_zorder() > edges.get_zorder()


def test_discs_grow_with_confidence_and_redden_with_loss(graph):
    random = np.random.default_rng(2)
    confidence, losses = random.random(20), random.random(20)
    figure = ct.plots.edges(graph, confidence, losses)
    _, discs = parts(figure)
    assert np.all(np.diff(discs.get_sizes()[np.argsort(confidence)]) > 0)
    red, green, _, _ = discs.get_facecolors()[np.argsort(losses)[[0, -1]]].T
    assert green[0] > red[0]
    assert red[1] > green[1]
    assert figure.axes[1].get_ylabel() == "local loss"


def test_tied_agents_are_closer_and_discs_do_not_overlap(graph, cluster):
    figure = ct.plots.edges(graph, confidence=np.arange(20.0))
    _, discs = parts(figure)
    shown = figure.axes[0].transData.transform(np.asarray(discs.get_offsets())) * 72.0 / figure.dpi  # in points
    distance = np.sqrt(np.square(shown[:, None] - shown).sum(axis=2))
    pairs = np.triu_indices(20, 1)
    tied = graph.W.toarray()[pairs] > 0
    apart = cluster[pairs[0]] != cluster[pairs[1]]
    assert np.median(distance[pairs][tied]) < np.median(distance[pairs][apart])
    radii = np.sqrt(discs.get_sizes()) / 2.0
    assert np.all(distance[pairs] >= 0.95 * (radii[:, None] + radii)[pairs])


def test_labels_are_written_inside_the_discs(graph):
    figure = ct.plots.edges(graph, losses=np.arange(20.0), labels=[f"a{k}" for k in range(20)])
    _, discs = parts(figure)
    assert [text.get_text() for text in figure.axes[0].texts] == [f"a{k}" for k in range(20)]
    np.testing.assert_allclose([text.get_position() for text in figure.axes[0].texts], discs.get_offsets())


@pytest.mark.parametrize("losses", [None, np.arange(20.0)])
def test_clusters_have_a_colour_each(graph, cluster, losses):
    figure = ct.plots.edges(graph, losses=losses, cluster=cluster)
    _, discs = parts(figure)
    rims = [tuple(color) for color in discs.get_edgecolors()]
    assert len({(rim, group) for rim, group in zip(rims, cluster.tolist(), strict=True)}) == len(set(rims)) == 3
    legend = figure.axes[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["0", "1", "2"]
    assert [handle.get_markeredgecolor() for handle in legend.legend_handles] == [
        pytest.approx(rims[np.argmax(cluster == group)]) for group in range(3)
    ]


@pytest.mark.parametrize("n", [1, 2, 7])
def test_no_edges(n):
    edges, discs = parts(ct.plots.edges(ct.graphs.empty(n), confidence=np.zeros(n)))
    assert len(edges.get_segments()) == 0
    assert len(np.unique(np.round(discs.get_offsets(), 6), axis=0)) == n


def test_the_layout_knows_no_scale_and_follows_its_seed(graph):
    places = [
        np.asarray(parts(ct.plots.edges(ct.Graph(graph.W * scale), seed=seed))[1].get_offsets())
        for scale, seed in [(1.0, 0), (1.0, 0), (1024.0, 0), (1.0, 1)]
    ]
    np.testing.assert_array_equal(places[0], places[1])
    np.testing.assert_allclose(places[0], places[2])
    assert not np.allclose(places[0], places[3])


def test_images_are_the_permuted_weights_over_their_largest(graph, cluster):
    other = ct.Graph(graph.W * 7.0)
    order = np.argsort(cluster, kind="stable")
    figure = ct.plots.weights(graph, other, ct.graphs.empty(20), order=order, titles=["a", "b", "c"])
    W = graph.W.toarray()[order][:, order]
    for axes, title, expected in zip(figure.axes, "abc", [W / W.max(), W / W.max(), 0 * W], strict=False):
        [image] = axes.images
        np.testing.assert_allclose(image.get_array(), expected)
        assert image.get_clim() == (0.0, 1.0)
        assert (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) == (title, "agent", "agent")
    white, black = figure.axes[0].images[0].cmap([0.0, 1.0])[:, :3]
    assert np.all(white > 0.95)
    assert np.all(black < 0.05)


def run(shift=0.0, rows=5):
    """All that is read of a run is its trace."""
    wakes = np.arange(rows) * 10
    trace = {"wakes": wakes, "vectors": wakes * 2, "bytes": 100 + wakes * 80, "accuracy": 0.5 + shift + wakes / 100}
    return SimpleNamespace(trace=pd.DataFrame(trace))


def line(axes, label):
    [found] = [curve for curve in axes.lines if curve.get_label() == label]
    return found


@pytest.mark.parametrize("unit", ["wakes", "vectors", "bytes"])
def test_curves_are_the_traces(unit):
    runs = {"one": run(), "two": run(0.1, rows=3)}
    [axes] = ct.plots.traces(runs, "accuracy", unit).axes
    for label, made in runs.items():
        np.testing.assert_allclose(line(axes, label).get_xdata(), made.trace[unit])
        np.testing.assert_allclose(line(axes, label).get_ydata(), made.trace["accuracy"])
    assert axes.get_xscale() == ("log" if unit == "bytes" else "linear")
    assert axes.get_ylabel() == "mean test accuracy"


def test_several_seeds_are_their_mean_with_a_band():
    [axes] = ct.plots.traces({"all": [run(), run(0.3), run(-0.15)]}, "accuracy").axes
    np.testing.assert_allclose(line(axes, "all").get_ydata(), run(0.05).trace["accuracy"])
    [band] = axes.collections
    [path] = band.get_paths()
    at_ten = path.vertices[np.isclose(path.vertices[:, 0], 10.0), 1]
    assert at_ten.min() == pytest.approx(0.6 - 0.15)
    assert at_ten.max() == pytest.approx(0.6 + 0.3)


def test_levels_are_dashed_lines_across():
    figure = ct.plots.traces({"one": run()}, "accuracy", levels={"alone": 0.6, "global": 0.7}, label="y", xlabel="x")
    [axes] = figure.axes
    assert [line(axes, name).get_ydata()[0] for name in ("alone", "global")] == [0.6, 0.7]
    assert {line(axes, name).get_linestyle() for name in ("alone", "global")} == {"--"}
    assert len({curve.get_color() for curve in axes.lines}) == 3
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["one", "alone", "global"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("x", "y")


def test_bytes_read_as_bytes():
    figure = ct.plots.traces({"one": run(rows=5000)}, "accuracy", "bytes")
    FigureCanvasAgg(figure).draw()
    ticks = [text.get_text() for text in figure.axes[0].get_xticklabels()]
    assert {"1 kB", "10 kB", "1 MB"} <= set(ticks)


def test_pyplot_is_left_alone(graph):
    ct.plots.edges(graph)
    ct.plots.weights(graph)
    ct.plots.correlations(np.eye(3), order="similar")
    ct.plots.traces({"one": run()}, "accuracy")
    assert plt.get_fignums() == []


GIVEN = {
    "edges": {"graph": ct.graphs.ring(20)},
    "traces": {"runs": {"one": run()}, "column": "accuracy"},
    "correlations": {"matrix": np.eye(2)},
}


@pytest.mark.parametrize(
    ("name", "bad", "message"),
    [
        (
            "edges",
            {"confidence": np.ones(3)},
            r"confidence must hold one number for each .*; found shape \(3,\)",
        ),
        (
            "edges",
            {"confidence": -np.ones(20)},
            "confidence of agent number 0 is -1.0: it must be a finite number >= 0",
        ),
        ("edges", {"losses": [np.nan, *range(19)]}, "losses of agent number 0 is nan: it must be a finite number"),
        ("edges", {"labels": "abc"}, r"labels has shape \(3,\)"),
        ("edges", {"cluster": [[1]]}, r"cluster has shape \(1, 1\)"),
        ("traces", {"runs": {}}, "runs is empty"),
        ("traces", {"runs": {"one": []}}, r"runs\['one'\] holds no runs"),
        ("traces", {"column": "loss"}, r"runs\['one'\]: its trace has no column 'loss'; there are wakes, vectors, byt"),
        ("traces", {"unit": "messages"}, "unit = 'messages': expected 'wakes', 'vectors' or 'bytes'"),
        ("correlations", {"matrix": np.ones((2, 3))}, r"matrix has shape \(2, 3\): it must be square"),
        ("correlations", {"matrix": np.ones(4)}, r"matrix has shape \(4,\): it must be square"),
        ("correlations", {"matrix": np.ones((0, 0))}, r"matrix has shape \(0, 0\)"),
        ("correlations", {"matrix": [[1.0], [1.0, 2.0]]}, "matrix is not a regular array of numbers"),
        ("correlations", {"matrix": [["a"]]}, "matrix is not a regular array of numbers"),
        ("correlations", {"matrix": [[1.0, np.nan], [np.nan, 1.0]]}, r"matrix\[0, 1\] = nan must be finite"),
        ("correlations", {"matrix": [[1.0, 0.0], [0.0, np.inf]]}, r"matrix\[1, 1\] = inf must be finite"),
        (
            "correlations",
            {"matrix": [[1.0, 0.5], [0.4, 1.0]]},
            r"\[0, 1\] = 0.5 and matrix\[1, 0\] = 0.4: it must be sym",
        ),
        ("correlations", {"matrix": [[4.0, 0.5], [0.5, 1.0]]}, r"\[0, 0\] = 4.0 must lie between -1 and 1; of covar"),
        ("correlations", {"names": ["a"]}, "names has 1 entries for 2 tasks"),
        ("correlations", {"order": "alphabetic"}, "order='alphabetic' must be 'similar'"),
        *(
            ("correlations", {"order": bad}, "must hold each of 0..1 once")
            for bad in ([0, 0], [0], [[0, 1]], [0.0, 1.0])
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused(name, bad, message):
    with pytest.raises(ParameterError, match=message):
        getattr(ct.plots, name)(**GIVEN[name] | bad)


def test_weights_refuses_what_does_not_fit(graph):
    for graphs, more, message in (
        ([], {}, "at least one graph"),
        ([graph, graph], {"titles": ["a"]}, "titles has 1 entries for 2 graphs"),
        ([graph], {"order": [0, 1]}, "order"),
    ):
        with pytest.raises(ParameterError, match=message):
            ct.plots.weights(*graphs, **more)


# -- labels of lines, and showing -------------------------------------------------------------------------------------


def test_labels_of_lines_are_at_their_ends_in_their_colours_and_apart():
    figure = Figure(figsize=(6.0, 4.0))
    axes = figure.add_subplot()
    for label, end in (("a", 1.0), ("b", 1.01), ("c", 1.02), ("far", 3.0)):
        axes.plot([0, 1], [0.0, end], label=label)
    axes.plot([0, 1], [2, 2])  # has no label
    axes.legend()
    figure.legend()
    ct.plots.label_lines(axes)
    assert axes.get_legend() is None
    assert not figure.legends
    texts = {text.get_text(): text for text in axes.texts}
    assert list(texts) == ["a", "b", "c", "far"]
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in texts.values()]
    assert all(low.y1 <= high.y0 + 1 for low, high in pairwise(boxes))
    ends = {line.get_label(): axes.transAxes.inverted().transform(axes.transData.transform(line.get_xydata()[-1]))
            for line in axes.get_lines()}  # fmt: skip
    assert texts["far"].get_position()[1] == pytest.approx(ends["far"][1])  # nothing is in its way
    assert texts["b"].get_position()[1] == pytest.approx(ends["b"][1])  # the middle one of three stays
    assert [text.get_color() for text in texts.values()] == [line.get_color() for line in axes.get_lines()[:4]]


def test_labels_of_a_logarithmic_axis_and_of_lines_across():
    axes = Figure().add_subplot()
    axes.semilogy([1, 10], [1e-8, 1e2], label="steep")
    axes.axhline(1e-3, label="level")
    ct.plots.label_lines(axes)
    low, high = (text.get_position() for text in axes.texts)
    assert [text.get_text() for text in axes.texts] == ["level", "steep"]
    assert 0.4 < low[1] < 0.6 < high[1] <= 1.0
    assert low[0] == high[0] > 1.0


def test_a_shown_figure_is_pyplots_once():
    plt.switch_backend("agg")
    plt.close("all")
    figure = ct.plots.weights(ct.graphs.complete(3))
    assert not plt.get_fignums()
    ct.plots.show(figure)
    ct.plots.show(figure)
    assert [plt.figure(number) for number in plt.get_fignums()] == [figure]
    plt.close("all")
    ct.plots.show(figure)  # and again
    assert plt.gcf() is figure
    plt.close("all")
