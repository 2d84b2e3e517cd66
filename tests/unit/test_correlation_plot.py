"""What the figure of task correlations shows."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import coterie as ct


@pytest.fixture(scope="module")
def block():
    return np.random.default_rng(0).permutation(np.repeat([0, 1, 2], [4, 5, 7]))


@pytest.fixture(scope="module")
def matrix(block):
    """Strong correlations of both signs within blocks, weak ones between."""
    random = np.random.default_rng(1)
    size = np.where(block[:, None] == block, 0.8, 0.2) + random.uniform(-0.1, 0.1, size=(16, 16))
    sign = random.choice([-1.0, 1.0], size=16)
    C = np.triu(size, 1) * np.outer(sign, sign)
    return C + C.T + np.eye(16)


def drawn(figure):
    [image] = figure.axes[0].images
    return np.asarray(image.get_array())


def ticks(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def test_the_image_is_the_matrix_from_minus_one_to_one(matrix):
    figure = ct.plots.correlations(matrix, title="learned")
    axes, bar = figure.axes
    np.testing.assert_array_equal(drawn(figure), matrix)
    [image] = axes.images
    assert image.get_clim() == (-1.0, 1.0)
    assert image.origin == "upper"
    assert (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) == ("learned", "task", "task")
    assert bar.get_ylabel() == "correlation"
    assert bar.get_ylim() == (-1.0, 1.0)
    small = ct.plots.correlations([[0.2, 0.1], [0.1, 0.2]])
    assert small.axes[0].images[0].get_clim() == (-1.0, 1.0)
    negative, none, positive = image.cmap(image.norm([-1.0, 0.0, 1.0]))[:, :3]
    assert np.all(none > 0.95)
    assert negative[2] > negative[0]  # blue
    assert positive[0] > positive[2]  # red


def test_names_are_on_both_axes_in_the_order_given(matrix, block):
    names = [f"school {k}" for k in range(16)]
    axes = ct.plots.correlations(matrix, names).axes[0]
    assert ticks(axes.xaxis) == ticks(axes.yaxis) == names
    np.testing.assert_array_equal(axes.get_xticks(), np.arange(16))
    np.testing.assert_array_equal(axes.get_yticks(), np.arange(16))
    assert ticks(ct.plots.correlations(matrix).axes[0].xaxis) == [str(k) for k in range(16)]
    order = np.argsort(block, kind="stable")
    figure = ct.plots.correlations(matrix, names, order=order)
    np.testing.assert_array_equal(drawn(figure), matrix[order][:, order])
    assert ticks(figure.axes[0].xaxis) == [names[k] for k in order]


@pytest.mark.parametrize("names", [[f"school {k}" for k in range(16)], None])
def test_names_do_not_overlap(matrix, names):
    figure = ct.plots.correlations(matrix, names)
    FigureCanvasAgg(figure).draw()
    for axis, side in ((figure.axes[0].xaxis, 0), (figure.axes[0].yaxis, 1)):
        boxes = [label.get_window_extent() for label in axis.get_ticklabels()]
        spans = sorted((box.min[side], box.max[side]) for box in boxes)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))


@pytest.mark.slow
@pytest.mark.parametrize("n", [40, 41])
def test_at_most_forty_names(n):
    names = [f"t{k}" for k in range(n)]
    for order in (None, "similar", np.arange(n)[::-1]):
        figure = ct.plots.correlations(np.eye(n), names, order=order)
        FigureCanvasAgg(figure).draw()
        shown = ticks(figure.axes[0].xaxis)
        if n <= 40:
            assert sorted(shown) == sorted(names)
        elif order is None:
            assert shown
            assert not set(shown) & set(names)
        else:  # numbers along the axes would be those of other tasks
            assert shown == []


def test_similar_tasks_are_side_by_side(matrix, block):
    figure = ct.plots.correlations(matrix, order="similar")
    order = [int(text) for text in ticks(figure.axes[0].xaxis)]
    assert sorted(order) == list(range(16))
    assert ticks(figure.axes[0].yaxis) == [str(k) for k in order]
    np.testing.assert_array_equal(drawn(figure), matrix[order][:, order])
    assert np.sum(np.diff(block[order]) != 0) == 2  # three blocks, each in one piece
    assert np.sum(np.diff(block) != 0) > 2


@pytest.mark.slow
def test_signs_do_not_separate_similar_tasks(matrix, block):
    assert (matrix[block[:, None] == block] < -0.5).any()
    orders = [
        ticks(ct.plots.correlations(C, order="similar").axes[0].xaxis)
        for C in (matrix, np.abs(matrix), 2.0 * np.eye(16) - matrix)
    ]
    assert orders[0] == orders[1] == orders[2]


def test_few_tasks_and_more_than_are_ordered_within_clusters():
    for n in (1, 2, 3):
        for order in (None, "similar"):
            np.testing.assert_array_equal(drawn(ct.plots.correlations(np.ones((n, n)), order=order)), np.ones((n, n)))
    block = np.random.default_rng(2).integers(0, 3, size=501)
    figure = ct.plots.correlations(np.where(block[:, None] == block, 1.0, 0.0), order="similar")
    changes = np.sum(np.abs(np.diff(drawn(figure), axis=0)).max(axis=1) > 0)
    assert changes == 2
    C = np.array([[1.0 + 1e-12, 0.5], [0.5 + 1e-12, 1.0]])  # rounding is no error
    np.testing.assert_array_equal(drawn(ct.plots.correlations(C)), C)


def test_axes_that_are_given_are_drawn_in(matrix):
    figure = Figure(layout="constrained")
    left, right = figure.subplots(1, 2)
    assert ct.plots.correlations(matrix, ax=right) is figure
    assert len(left.images) == 0
    np.testing.assert_array_equal(right.images[0].get_array(), matrix)
    part = figure.subfigures(1, 1).add_subplot()
    assert ct.plots.correlations(matrix, ax=part) is figure
    np.testing.assert_array_equal(part.images[0].get_array(), matrix)
