"""Models: functions from the rows of an agent and a parameter vector to a loss, a gradient, and predictions.

A model has ``size``, the number of its parameters; ``scratch``, the numbers of ``data.sheet`` that it uses; ``parts``,
the position of each named parameter in the vector; ``initial()``; ``predict(theta, X)``; and two handlers,

    value(data, theta)                 row_weight times the sum of the losses of the agent's rows
    gradient(data, theta, scale, out)  out += scale times the gradient of that sum

A model that is a rule is compiled into the loop. Any other model has ``opaque = True`` and runs in the plain loop: see
:mod:`coterie.models`.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from .._checks import integer
from .compile import class_of, inline, noinline, or_numpy, overload, room
from .exponential import exp_minus
from .linear import DenseRows, axpy, axpy_four, dot, dot_four, fill, gram_norms, matrix_of
from .losses import REALS, pooled_value
from .rules import NamedTuple, checked, rule

#: Rows of a block of a gradient, which computes all margins, then all slopes, then their sum; and of a network.
LINEAR_BLOCK_ROWS, NETWORK_BLOCK_ROWS = 32, 16


def look_ahead(ahead, part, parts):
    """Prefetch one of `parts` equal parts of the rows that are needed next."""


@overload(look_ahead)
def _look_ahead(ahead, part, parts):
    if class_of(ahead) is None:
        return lambda ahead, part, parts: None
    return lambda ahead, part, parts: ahead.fetch(part, parts)


def _add_linear_gradient(model, data, theta, scale, out):
    """NumPy version of :meth:`Linear.gradient`, for the process of one agent."""
    weight = scale * data.row_weight
    if isinstance(data.rows, DenseRows):
        pairs = zip((data.rows.values @ theta).tolist(), data.labels.tolist(), strict=True)
        slopes = [weight * data.loss.derivative(margin, label) for margin, label in pairs]
        axpy(1.0, np.dot(slopes, data.rows.values), out)
    else:
        for r in range(data.labels.shape[0]):
            data.rows.add(r, weight * data.loss.derivative(data.rows.dot(r, theta), data.labels[r]), out)


@rule
class Linear(NamedTuple):
    """The linear model ``x . theta`` under the loss of the problem: one parameter for each feature."""

    def value(self, data, theta):
        """Compute the weighted losses of the agent's rows; their margins stay in ``data.sheet``."""
        margins = data.sheet[: data.labels.shape[0]]
        data.rows.dots(0, margins.shape[0], theta, margins)
        m = margins.shape[0] // data.outputs
        value = 0.0
        for o in range(data.outputs):  # the examples of the outputs follow one another
            value += pooled_value(
                data.loss, margins[o * m : (o + 1) * m], data.labels[o * m : (o + 1) * m], data.row_weight
            )
        return value

    @or_numpy(_add_linear_gradient)
    def gradient(self, data, theta, scale, out):
        """Add the gradient of the weighted losses of the agent's rows."""
        weight, slopes = scale * data.row_weight, room(LINEAR_BLOCK_ROWS)
        part, parts = 0, 3 * ((data.labels.shape[0] + LINEAR_BLOCK_ROWS - 1) // LINEAR_BLOCK_ROWS)
        for first in range(0, data.labels.shape[0], LINEAR_BLOCK_ROWS):
            last = min(first + LINEAR_BLOCK_ROWS, data.labels.shape[0])
            # Prefetch in small parts: a core keeps only some dozens of loads under way.
            look_ahead(data.ahead, part, parts)
            data.rows.dots(first, last, theta, slopes)
            look_ahead(data.ahead, part + 1, parts)
            for r in range(last - first):  # a separate loop, so that the compiler vectorises it
                slopes[r] = data.loss.derivative(slopes[r], data.labels[first + r])
            look_ahead(data.ahead, part + 2, parts)
            data.rows.add_all(first, last, weight, slopes, out)
            part += 3


@rule
class Inside(NamedTuple):
    """Placeholder for the loss of a problem whose model has its own loss; never called."""

    smoothness = 1.0
    lipschitz = math.inf
    labels = REALS
    pooled = unlabelled = False
    likelihood = None

    def value(self, margin, label):
        return 0.0

    def derivative(self, margin, label):
        return 0.0


@inline
def tanh(x):
    """Hyperbolic tangent, to 2e-16, of several numbers at once."""
    e = exp_minus(2.0 * abs(x))
    return math.copysign((1.0 - e) / (1.0 + e), x)


@noinline
def _products(X, m, q, weights, biases, out):
    """``out_rh = x_r . w_h + b_h`` for m rows and q vectors of weights, one after the other."""
    f, four = X.shape[1], m - m % 4
    for h in range(q):
        w, b = weights[h * f : (h + 1) * f], biases[h]
        for r in range(0, four, 4):
            s, t, u, v = dot_four(X[r], X[r + 1], X[r + 2], X[r + 3], w)
            out[r, h], out[r + 1, h], out[r + 2, h], out[r + 3, h] = s + b, t + b, u + b, v + b
        for r in range(four, m):
            out[r, h] = dot(X[r], w) + b


@noinline
def _add_products(slopes, X, m, q, weights, biases):
    """Gradient of :func:`_products`, added to those of weights and biases: ``w_h += sum_r slope_rh x_r``."""
    f, four = X.shape[1], m - m % 4
    for h in range(q):
        w = weights[h * f : (h + 1) * f]
        for r in range(0, four, 4):
            s, t, u, v = slopes[r, h], slopes[r + 1, h], slopes[r + 2, h], slopes[r + 3, h]
            axpy_four(s, X[r], t, X[r + 1], u, X[r + 2], v, X[r + 3], w)
            biases[h] += (s + t) + (u + v)
        for r in range(four, m):
            axpy(slopes[r, h], X[r], w)
            biases[h] += slopes[r, h]


@inline
def _take_rows(data, first, m, X):
    """Copy m rows into contiguous memory, where sums over several rows are fast."""
    for r in range(m):
        fill(0.0, X[r])
        data.rows.add(first + r, 1.0, X[r])


@inline
def _forward(model, data, first, m, theta, X, hidden, score):
    """Compute activations and scores of m rows, copied into contiguous memory first."""
    f, q, c = model.inputs, model.hidden, model.outputs
    _take_rows(data, first, m, X)
    _products(X, m, q, theta[: q * f], theta[q * f : q * (f + 1)], hidden)
    for r in range(m):
        mine = hidden[r]
        for h in range(q):  # a separate loop, so that the compiler vectorises it
            mine[h] = tanh(mine[h])
    head = theta[q * (f + 1) :]
    _products(hidden, m, c, head[: c * q], head[c * q :], score)


@inline
def _likelihoods(score):
    """Replace the scores of a row by exp(score - top). Return the top and the sum of these."""
    top, total = -math.inf, 0.0
    for c in range(score.shape[0]):
        top = max(top, score[c])
    for c in range(score.shape[0]):  # a separate loop, so that the compiler vectorises it
        score[c] = exp_minus(top - score[c])
    for c in range(score.shape[0]):
        total += score[c]
    return top, total


@inline
def _slopes(score, label, weight):
    """Replace a row's scores by weighted slopes of its loss: softmax cross entropy, or half the squared error."""
    if score.shape[0] == 1:
        score[0] -= label
    else:
        _, total = _likelihoods(score)
        for c in range(score.shape[0]):
            score[c] /= total
        score[int(label)] -= 1.0
    for c in range(score.shape[0]):
        score[c] *= weight


@inline
def _loss(score, label):
    """Return the loss of a row; overwrites its scores."""
    if score.shape[0] == 1:
        return 0.5 * (score[0] - label) ** 2
    mine = score[int(label)]
    top, total = _likelihoods(score)
    return top + math.log(total) - mine


@inline
def _sheets(model, sheet):
    """Split scratch space for a block of rows: features, activations, gradients of these, and scores."""
    f, q, c = model.inputs, model.hidden, model.outputs
    a, b = NETWORK_BLOCK_ROWS * f, NETWORK_BLOCK_ROWS * q
    return (
        sheet[:a].reshape(NETWORK_BLOCK_ROWS, f),
        sheet[a : a + b].reshape(NETWORK_BLOCK_ROWS, q),
        sheet[a + b : a + 2 * b].reshape(NETWORK_BLOCK_ROWS, q),
        sheet[a + 2 * b : a + 2 * b + NETWORK_BLOCK_ROWS * c].reshape(NETWORK_BLOCK_ROWS, c),
    )


def _losses(score, labels):
    """NumPy version: return the losses of all rows, and replace scores by slopes."""
    if score.shape[1] == 1:
        score[:, 0] -= labels
        return 0.5 * score[:, 0] ** 2, score
    mine = np.arange(score.shape[0]), labels.astype(np.int64)
    score -= score.max(axis=1, keepdims=True) if score.size else 0.0
    wanted, score = score[mine], np.exp(score)
    total = score.sum(axis=1, keepdims=True)
    score /= total
    score[mine] -= 1.0
    return np.log(total[:, 0]) - wanted, score


def _value(model, data, theta):
    """NumPy version of :meth:`TwoLayer.value`, for the process of one agent."""
    X = matrix_of(data.rows, model.inputs)
    return float(data.row_weight * _losses(model.activate(theta, X)[1], data.labels)[0].sum())


def _add_two_layer_gradient(model, data, theta, scale, out):
    """NumPy version of :meth:`TwoLayer.gradient`."""
    X = matrix_of(data.rows, model.inputs)
    hidden, score = model.activate(theta, X)
    slope = scale * data.row_weight * _losses(score, data.labels)[1]
    w, b, v, c = model.parts.values()
    back = (slope @ theta[v].reshape(model.outputs, -1)) * (1.0 - hidden * hidden)
    out[w] += (back.T @ X).ravel()
    out[b] += back.sum(axis=0)
    out[v] += (slope.T @ hidden).ravel()
    out[c] += slope.sum(axis=0)


@checked(inputs=integer, hidden=integer, outputs=integer)
@rule
class TwoLayer(NamedTuple):
    """A compiled network with one hidden layer of tanh units (the *body*) and a linear output layer (the *head*).

    Several outputs are classes 0, 1, ..., with softmax and cross entropy; one output is a number, with half the squared
    error.

    Parameters
    ----------
    inputs, hidden, outputs : int
        Features, units of the hidden layer, and classes (or 1 for regression).

    Examples
    --------
    >>> import coterie as ct
    >>> model = ct.models.TwoLayer(4, 3, 2)
    >>> model.size, {name: (part.start, part.stop) for name, part in model.parts.items()}
    (23, {'body.weight': (0, 12), 'body.bias': (12, 15), 'head.weight': (15, 21), 'head.bias': (21, 23)})
    """

    inputs: int
    hidden: int
    outputs: int

    size = property(lambda self: self.hidden * (self.inputs + 1) + self.outputs * (self.hidden + 1))
    scratch = property(lambda self: NETWORK_BLOCK_ROWS * (self.inputs + 2 * self.hidden + self.outputs))
    classes = property(lambda self: 0 if self.outputs == 1 else self.outputs)

    @property
    def parts(self):
        f, q, c = self
        ends = np.cumsum([0, q * f, q, c * q, c]).tolist()
        names = ("body.weight", "body.bias", "head.weight", "head.bias")
        return {name: slice(a, b) for name, a, b in zip(names, ends[:-1], ends[1:], strict=True)}

    def initial(self, seed=0):
        """Return random parameters, uniform with a width of one over the root of a unit's number of inputs."""
        rng, theta = np.random.default_rng(seed), np.zeros(self.size)
        for name, part in self.parts.items():
            bound = 1.0 / math.sqrt(self.inputs if name.startswith("body") else self.hidden)
            theta[part] = rng.uniform(-bound, bound, part.stop - part.start)
        return theta

    def predict(self, theta, X):
        """Return scores (rows, classes), or numbers (rows,) for one output."""
        _, score = self.activate(theta, X)
        return score[:, 0] if self.outputs == 1 else score

    def activate(self, theta, X):
        """Return activations and scores of rows."""
        w, b, v, c = (theta[part] for part in self.parts.values())
        hidden = np.tanh(X @ w.reshape(self.hidden, -1).T + b)
        return hidden, hidden @ v.reshape(self.outputs, -1).T + c

    @or_numpy(_value)
    def value(self, data, theta):
        """Compute the weighted losses of the agent's rows."""
        X, hidden, _, score = _sheets(self, data.sheet)
        value = 0.0
        for first in range(0, data.labels.shape[0], NETWORK_BLOCK_ROWS):
            m = min(NETWORK_BLOCK_ROWS, data.labels.shape[0] - first)
            _forward(self, data, first, m, theta, X, hidden, score)
            for r in range(m):
                value += _loss(score[r], data.labels[first + r])
        return data.row_weight * value

    @or_numpy(_add_two_layer_gradient)
    def gradient(self, data, theta, scale, out):
        """Add ``scale`` times the gradient, by back propagation over blocks of rows."""
        f, q, c = self.inputs, self.hidden, self.outputs
        body, head, weight = q * f, q * (f + 1), scale * data.row_weight
        X, hidden, back, score = _sheets(self, data.sheet)
        for first in range(0, data.labels.shape[0], NETWORK_BLOCK_ROWS):
            m = min(NETWORK_BLOCK_ROWS, data.labels.shape[0] - first)
            _forward(self, data, first, m, theta, X, hidden, score)
            for r in range(m):
                mine, activation, slopes = back[r], hidden[r], score[r]
                _slopes(slopes, data.labels[first + r], weight)
                fill(0.0, mine)
                for k in range(c):
                    axpy(slopes[k], theta[head + k * q : head + (k + 1) * q], mine)
                for h in range(q):
                    mine[h] *= 1.0 - activation[h] * activation[h]
            _add_products(score, hidden, m, c, out[head : head + c * q], out[head + c * q :])
            _add_products(back, X, m, q, out[:body], out[body:head])


def _add_softmax_gradient(model, data, theta, scale, out):
    """NumPy version of :meth:`Softmax.gradient`."""
    X = matrix_of(data.rows, model.inputs)
    slope = scale * data.row_weight * _losses(model.predict(theta, X), data.labels)[1]
    w, b = model.parts.values()
    out[w] += (slope.T @ X).ravel()
    out[b] += slope.sum(axis=0)


@inline
def _score(model, data, first, m, theta):
    """Copy rows into contiguous memory, and return them with their scores."""
    f, c = model.inputs, model.classes
    X, score = (
        data.sheet[: NETWORK_BLOCK_ROWS * f].reshape(NETWORK_BLOCK_ROWS, f),
        data.sheet[NETWORK_BLOCK_ROWS * f : NETWORK_BLOCK_ROWS * (f + c)].reshape(NETWORK_BLOCK_ROWS, c),
    )
    _take_rows(data, first, m, X)
    _products(X, m, c, theta[: c * f], theta[c * f :], score)
    return X, score


@checked(inputs=integer, classes=partial(integer, least=2))
@rule
class Softmax(NamedTuple):
    """A compiled linear model of several classes: multinomial logistic regression, ``softmax(W x + b)``.

    Labels are classes 0, 1, ...; the loss is the cross entropy. All agents start from zeros. The curvature of the loss
    is bounded, so that :class:`coterie.CoordinateDescent` runs, too.

    Parameters
    ----------
    inputs, classes : int
        Features, and classes.

    Examples
    --------
    >>> import coterie as ct
    >>> model = ct.models.Softmax(4, 3)
    >>> model.size, {name: (part.start, part.stop) for name, part in model.parts.items()}
    (15, {'weight': (0, 12), 'bias': (12, 15)})
    """

    inputs: int
    classes: int

    size = property(lambda self: self.classes * (self.inputs + 1))
    scratch = property(lambda self: NETWORK_BLOCK_ROWS * (self.inputs + self.classes))

    @property
    def parts(self):
        end = self.classes * self.inputs
        return {"weight": slice(0, end), "bias": slice(end, end + self.classes)}

    def initial(self, seed=0):
        """Return zeros."""
        return np.zeros(self.size)

    def predict(self, theta, X):
        """Return scores (rows, classes)."""
        return self.activate(theta, X)[1]

    def activate(self, theta, X):
        """Return the rows themselves, which are the inputs of the head, and their scores."""
        w, b = (theta[part] for part in self.parts.values())
        return X, X @ w.reshape(self.classes, -1).T + b

    def curvatures(self, rows, start):
        """Bound each agent's curvature: cross entropy has a Hessian of at most 1/2 in scores; rows end with a 1."""
        sizes = np.diff(start)
        return np.where(sizes > 0, 0.5 * (gram_norms(rows, start, self.inputs) / np.maximum(sizes, 1) + 1.0), 0.0)

    @or_numpy(_value)
    def value(self, data, theta):
        """Compute the weighted losses of the agent's rows."""
        value = 0.0
        for first in range(0, data.labels.shape[0], NETWORK_BLOCK_ROWS):
            m = min(NETWORK_BLOCK_ROWS, data.labels.shape[0] - first)
            _, score = _score(self, data, first, m, theta)
            for r in range(m):
                value += _loss(score[r], data.labels[first + r])
        return data.row_weight * value

    @or_numpy(_add_softmax_gradient)
    def gradient(self, data, theta, scale, out):
        """Add ``scale`` times the gradient, by blocks of rows."""
        c, weight = self.classes, scale * data.row_weight
        for first in range(0, data.labels.shape[0], NETWORK_BLOCK_ROWS):
            m = min(NETWORK_BLOCK_ROWS, data.labels.shape[0] - first)
            X, score = _score(self, data, first, m, theta)
            for r in range(m):
                _slopes(score[r], data.labels[first + r], weight)
            _add_products(score, X, m, c, out[: c * self.inputs], out[c * self.inputs :])
