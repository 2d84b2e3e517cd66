"""Partial pooling by gossip if some agents may lie: averages with an anchor and without extremes, and doubt.

As in :mod:`.pooling`, agent i's model is drawn from a population, ``theta_i ~ N(w, V)``, and w, V and the noise s2 are
unknown. V is diagonal in *centred* coordinates, in which the last number of a model, that of the column of
ones, is the prediction at a typical row c of the population:

    theta_c = ( theta_1 ... theta_{p-1},  theta_p + sum_{k<p} c_k theta_k ).

Columns and labels therefore need no scaling or centring: w is sent in raw units, and every receiver centres exactly.
A summary of the population is e = (w, V, c, q, s2) with q the mean squares of the columns about c. Each agent keeps
the last summary of each neighbour, and when it wakes it takes, coordinate by coordinate,

    T_i = mean of its own e_i and of its neighbours' e_j without the smallest and the largest,

For spreads only the smallest are left out, since too wide a population costs little, and a lie needs too narrow a one;
c is taken from the middle, where honest values are. Neighbours that are far out in many coordinates at once are left
out altogether. Spreads are ``v_j + (w_j - T_i w)^2``, the second moments about T_i's mean (resilient consensus:
LeBlanc, Zhang, Koutsoukos and Sundaram, 2013). Then the agent computes its posterior from T_i and its rows, and its own
contribution to the population,

    z_i = ( theta_i,  (theta_i - w)^2 + Var_i,  means and squares of its columns,  E|y_i - X_i theta_i|^2 / m_i ),
    e_i = anchor z_i + (1 - anchor) T_i ,

and sends e_i to all neighbours. Nothing is conserved: a message may be lost, duplicated or late; when an edge ends, the
neighbour's summary is dropped, and its influence elsewhere decays as powers of 1 - anchor.

An agent compares the population with a *broad* prior of its own, a ridge regression whose strength and noise are
learned from its own rows by Laplace evidence, and mixes the two posteriors:

    trust = (1 - doubt) p(y | T_i) / ( (1 - doubt) p(y | T_i) + doubt p(y | broad) ).

A population that contradicts the agent's rows loses its weight. Such an agent contributes what it believes: mostly its
broad posterior, so that a population moved by liars is pulled back.

=============================  =====================================================
above                          here
=============================  =====================================================
theta_i                        ``me.theta``
e_i                            ``me.shared``, with w in raw units
e_j                            ``edges.heard[slot]`` with ``data.peer[slot] == j``
T_i                            ``found``, with w centred
c                              ``found[2 p : 3 p]``, whose last number is 0
the broad posterior            ``me.cache.model``, centred about ``me.cache.mean``
=============================  =====================================================
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from ..._checks import flag, within
from ..arrays import EVERYONE, VACANT, agent, send
from ..compile import inline, kernel, noinline
from ..laplace import Steps, find_mode, in_raw_units, row_less, square_error
from ..linear import copy_to, dot, fill
from ..losses import GAUSSIAN
from ..messages import Number, Numbers
from ..method import NamedTuple, Posterior, method
from ..rules import checked
from ..trimming import clip_far, middle_and_width, middle_of, sort, trimmed_count, trimmed_mean
from .pooling import MIN_NOISE_RATIO, Population, fits_likelihood

#: The only kind of message: the sender's summary of the population.
SUMMARY = 0
#: Largest number in the messages of an honest agent.
MAX_NUMBER = 1e60
#: Pairs of means and spreads in a summary: models about the common model, and columns about a typical row.
MOMENTS = Numbers(1, 0, MAX_NUMBER), Numbers(1, 0, MAX_NUMBER, least=0.0)
#: Entries of ``facts``: the variance of labels (0 for classes); noise, evidence and strength of the broad model; and
#: whether they have been computed.
SCALE, NOISE, EVIDENCE, STRENGTH, DONE = 0, 1, 2, 3, 4
#: Fewest rows that can judge a population of real labels: a single label has no spread.
MIN_ROWS = 2
#: Accuracy of an agent's mode.
NEWTON_STEPS = Steps(near=1e-2, enough=1e-14, part=1.0)
#: Steps of EM for strength and noise of the broad model.
EM_STEPS = 20
#: Weight, in rows, of the variance of labels as a prior for the noise of the broad model.
NOISE_PRIOR_ROWS = 0.5
#: Number of columns, with slopes as large as labels vary, added as a prior to those that estimate the strength.
STRENGTH_PRIOR_COLUMNS = 2.0
#: Initial variance of a logit's slope for a column with spread 1, and of its intercept.
LOGIT_VARIANCE = 4.0
#: Largest plausible value from neighbours, in multiples of what an agent's own rows can distinguish.
MAX_NEIGHBOUR_FACTOR = 30.0
#: As MAX_NEIGHBOUR_FACTOR, about zero, for a column that is constant in the agent's own rows.
CONSTANT_COLUMN_FACTOR = 3.0
#: With four or more neighbours, values farther from the median than this many median distances are clipped there.
CLIP_WIDTHS = 4.0
#: Fraction left out at either end, if anything is left out, for a typical row.
MIDDLE_TRIM = 0.49
#: A neighbour is left out if its mean distance over coordinates, each clipped to a number of median distances, exceeds
#: the neighbours' median by this factor.
SUSPECT_RATIO, MAX_COUNTED_WIDTHS = 3.0, 10.0
#: Fraction by which an agent shrinks what it repeats about a column that is constant in its own rows.
CONSTANT_COLUMN_FADE = 0.1
#: A column is constant if its spread is a smaller fraction of its mean square: the rest is rounding.
MIN_SPREAD_RATIO = 1e-24
#: Log odds beyond which the population has no weight.
MAX_LOG_ODDS = 700.0


class Broad(NamedTuple):
    """Results that agents compute once from their own rows."""

    mean: np.ndarray  # (n, p) of the columns; 0 for the last
    spread: np.ndarray  # (n, p) mean squares about it
    model: np.ndarray  # (n, p) the broad posterior, centred about the mean
    variance: np.ndarray  # (n, p) variances of the broad posterior; 0 where a column is constant
    facts: np.ndarray  # (n, 5) SCALE, NOISE, EVIDENCE, STRENGTH, DONE


class Own(NamedTuple):
    """State of the agents."""

    theta: np.ndarray  # (n, p) the agent's model
    shared: np.ndarray  # (n, 4 p + 2) the agent's e_i, whose s2 is 0 while it knows nothing; and room for one number
    cache: Broad


class Edge(NamedTuple):
    """State of the edges."""

    heard: (
        np.ndarray
    )  # (edges, 4 p + 3) the neighbour's e_j; its s2 is 0 as long as it has said nothing; and room for two


@inline
def broad_prior(data, me, intercept, strength, center, root):
    """Compute the broad prior of the agent's model, centred about the mean of its columns."""
    p, facts = me.theta.shape[0], me.cache.facts
    scale = facts[SCALE] if facts[SCALE] > 0.0 else LOGIT_VARIANCE
    fill(0.0, center)
    for k in range(p):
        root[k] = math.sqrt(strength * scale / me.cache.spread[k]) if me.cache.spread[k] > 0.0 else 0.0
    if intercept:
        root[p - 1] = math.sqrt(scale)
        if facts[SCALE] > 0.0:
            for r in range(data.labels.shape[0]):
                center[p - 1] += data.labels[r] / data.labels.shape[0]


@inline
def describe(data, me, intercept):
    """Compute means and spreads of the agent's columns, and the variance of its labels."""
    p, m, facts = me.theta.shape[0], data.labels.shape[0], me.cache.facts
    mean, spread, line = me.cache.mean, me.cache.spread, me.cache.model
    fill(0.0, mean)
    fill(0.0, spread)
    if intercept:
        for r in range(m):
            data.rows.add(r, 1.0 / m, mean)
        mean[p - 1] = 0.0
    for r in range(m):
        row_less(data.rows, r, mean, line)
        for k in range(p):
            spread[k] += line[k] * line[k] / m
    for k in range(p):
        if spread[k] <= MIN_SPREAD_RATIO * mean[k] * mean[k]:
            spread[k] = 0.0
    if facts[SCALE] > 0.0:
        middle, square, scale = 0.0, 0.0, 0.0
        for r in range(m):
            square += data.labels[r] * data.labels[r] / m
            middle += data.labels[r] / m if intercept else 0.0
        for r in range(m):
            scale += (data.labels[r] - middle) * (data.labels[r] - middle) / m
        if not scale > MIN_SPREAD_RATIO * square:  # constant labels: use their mean square as variance
            scale = 1e-6 * square if m > 1 else square
        facts[SCALE] = scale if scale > 0.0 else 1.0


@noinline
def begin(data, me, intercept, scratch):
    """Compute the broad model and the first e_i, once. Changes no model."""
    p, m, facts = me.theta.shape[0], data.labels.shape[0], me.cache.facts
    if facts[DONE] > 0.0 or m == 0:
        return
    facts[DONE] = 1.0
    describe(data, me, intercept)
    center, root = scratch[:p], scratch[p : 2 * p]
    inverse, rest = scratch[2 * p : 2 * p + p * p], scratch[2 * p + p * p :]
    theta, mean, gaussian = me.cache.model, me.cache.mean, facts[SCALE] > 0.0
    slopes = p - 1 if intercept else p
    noise, strength = facts[SCALE] if gaussian else 1.0, 1.0
    broad_prior(data, me, intercept, strength, center, root)
    copy_to(center, theta)
    for t in range(EM_STEPS):
        facts[EVIDENCE] = find_mode(data, noise, mean, center, root, NEWTON_STEPS, theta, inverse, rest)
        facts[NOISE], facts[STRENGTH] = noise, strength
        if t == EM_STEPS - 1:
            break
        size, count, used = 0.0, 0, 0.0
        for k in range(p):
            used += 1.0 - inverse[k * p + k]
            if k < slopes and root[k] > 0.0:
                distance = (theta[k] - center[k]) / root[k]
                size += distance * distance + inverse[k * p + k]
                count += 1
        if count > 0:
            strength = (strength * size + STRENGTH_PRIOR_COLUMNS) / (count + STRENGTH_PRIOR_COLUMNS)
        if gaussian:
            residual = square_error(data, mean, theta, rest[:p])
            noise = (residual + noise * used + NOISE_PRIOR_ROWS * facts[SCALE]) / (m + NOISE_PRIOR_ROWS)
        broad_prior(data, me, intercept, strength, center, root)
    tuned = (1.0 if gaussian else 0.0) + (1.0 if slopes > 0 else 0.0)
    facts[EVIDENCE] -= 0.5 * tuned * math.log(m + 1.0)  # parameters fitted to these rows must not add to their evidence
    for k in range(p):
        me.cache.variance[k] = root[k] * root[k] * inverse[k * p + k]
    shared = me.shared
    if shared[4 * p] > 0.0:
        return  # Newton's method has returned in other arrays
    for k in range(p):
        shared[k] = theta[k]
        shared[p + k] = me.cache.variance[k]
        shared[2 * p + k] = mean[k]
        shared[3 * p + k] = me.cache.spread[k]
    shared[p - 1] -= dot(mean, theta)
    shared[4 * p] = facts[NOISE] if gaussian else 1.0


@inline
def collect(data, heard, sure, at, about, middle, values):
    """Collect neighbours' values at ``at``, if ``sure`` is positive; with ``about``, as spreads about ``middle``."""
    count, said = 0, heard.shape[1] - 3  # s2; two numbers follow, whether the neighbour is suspect
    for t in range(data.peer.shape[0]):
        if data.peer[t] != VACANT and heard[t, said] > 0.0 and heard[t, sure] > 0.0 and heard[t, said + 2] >= 0.0:
            value = heard[t, at]
            if about >= 0:
                distance = heard[t, about] - middle
                value += distance * distance
            values[count] = value
            count += 1
    return count


@inline
def agreed(data, me, edges, trim, sure, at, about, middle, values):
    """Return the trimmed mean of the neighbours' and the agent's values; 0 for a spread that no agent knows."""
    slots = data.peer.shape[0]
    count = collect(data, edges.heard, sure, at, about, middle, values)
    neighbours = count
    if me.shared[sure] > 0.0:
        own = me.shared[at]
        if about >= 0:
            own += (me.shared[about] - middle) * (me.shared[about] - middle)
        values[count] = own
        count += 1
    if count == 0:
        return 0.0
    cut = trimmed_count(trim, neighbours)
    if cut > 0:
        clip_far(values[:count], CLIP_WIDTHS, values[slots + 1 :])
    # Too wide a spread costs little, and a lie about a mean needs too narrow a one: only small spreads are left out.
    return trimmed_mean(values[:count], cut, 0 if about >= 0 else cut)


@inline
def suspect(data, me, edges, trim, values):
    """Mark neighbours whose models are far out in many coordinates at once, as honest ones are not."""
    p, slots, heard = me.theta.shape[0], data.peer.shape[0], edges.heard
    spoken = collect(data, heard, 4 * p, 4 * p, -1, 0.0, values)
    if trimmed_count(trim, spoken) == 0:
        return
    for k in range(p):
        at = k if k < p - 1 else 4 * p + 1
        count = collect(data, heard, p + k, at, -1, 0.0, values)
        if me.shared[p + k] > 0.0:
            values[count] = me.shared[at]
            count += 1
        if count > 3:
            middle, width = middle_and_width(values[:count], values[slots + 1 :])
            for t in range(slots):
                if width > 0.0:
                    heard[t, 4 * p + 2] += min(abs(heard[t, at] - middle) / width, MAX_COUNTED_WIDTHS) / p
    count = collect(data, heard, 4 * p, 4 * p + 2, -1, 0.0, values)
    sort(values[:count])
    limit = SUSPECT_RATIO * max(middle_of(values[:count]), 1.0)
    for t in range(slots):
        heard[t, 4 * p + 2] = -1.0 if heard[t, 4 * p + 2] > limit else 0.0


@inline
def room_of(slots):
    """Return how many numbers of scratch space :func:`agreed` needs: all values, and their distances."""
    return 2 * slots + 2


@inline
def clipped(value, middle, radius):
    """Return the value, clipped to a distance of `radius` from the middle."""
    return min(max(value, middle - radius), middle + radius)


@noinline
def gather(data, me, edges, trim, found, values):
    """Combine the agent's and its neighbours' summaries, w centred about the shift.

    Return how many neighbours have sent one.
    """
    p, gaussian = me.theta.shape[0], me.cache.facts[SCALE] > 0.0
    for t in range(data.peer.shape[0]):
        edges.heard[t, 4 * p + 2] = 0.0
    spoken = collect(data, edges.heard, 4 * p, 4 * p, -1, 0.0, values)
    if spoken == 0:
        return spoken
    # A typical row need not be the mean row: take it from the middle, where honest values are.
    middle = MIDDLE_TRIM if trimmed_count(trim, spoken) > 0 else 0.0
    judges = me.cache.facts[DONE] > 0.0 and (not gaussian or data.labels.shape[0] >= MIN_ROWS)
    scale = me.cache.facts[SCALE] if gaussian else LOGIT_VARIANCE
    mean, spread, shift = me.cache.mean, me.cache.spread, found[2 * p : 3 * p]
    for k in range(p):
        shift[k] = agreed(data, me, edges, middle, 4 * p, 2 * p + k, -1, 0.0, values)
        if judges and spread[k] > 0.0:
            shift[k] = clipped(shift[k], mean[k], MAX_NEIGHBOUR_FACTOR * math.sqrt(spread[k]))
        found[3 * p + k] = agreed(data, me, edges, trim, 4 * p, 3 * p + k, 2 * p + k, shift[k], values)
        if found[3 * p + k] <= MIN_SPREAD_RATIO * shift[k] * shift[k]:
            found[3 * p + k] = 0.0
    shift[p - 1] = 0.0
    me.shared[4 * p + 1] = me.shared[p - 1] + dot(shift, me.shared[:p])
    for t in range(data.peer.shape[0]):
        edges.heard[t, 4 * p + 1] = edges.heard[t, p - 1] + dot(shift, edges.heard[t, :p])
    noise = agreed(data, me, edges, trim, 4 * p, 4 * p, -1, 0.0, values)
    suspect(data, me, edges, trim, values)
    if judges and gaussian:
        noise = min(max(noise, MIN_NOISE_RATIO * scale), MAX_NEIGHBOUR_FACTOR * MAX_NEIGHBOUR_FACTOR * scale)
    found[4 * p] = noise if gaussian else 1.0
    level = me.cache.model[p - 1]
    for k in range(p):
        at = k if k < p - 1 else 4 * p + 1
        found[k] = agreed(data, me, edges, trim, p + k, at, -1, 0.0, values)
        center, radius, seen = 0.0, math.inf, judges and (spread[k] > 0.0 or k == p - 1)
        if seen:
            center = me.cache.model[k] if k < p - 1 else level
            radius = (
                MAX_NEIGHBOUR_FACTOR * math.sqrt(scale / spread[k])
                if spread[k] > 0.0
                else MAX_NEIGHBOUR_FACTOR * math.sqrt(scale)
            )
        elif judges and found[3 * p + k] > 0.0:  # own rows cannot judge: clip to a usual size
            radius = CONSTANT_COLUMN_FACTOR * math.sqrt(scale / found[3 * p + k])
        found[k] = clipped(found[k], center, radius)
        found[p + k] = min(agreed(data, me, edges, trim, p + k, p + k, at, found[k], values), radius * radius)
        if seen and not gaussian:  # few labels cannot refute too wide a population: clip to the broad prior
            slack = me.cache.facts[STRENGTH] if k < p - 1 else 1.0
            found[p + k] = min(found[p + k], slack * radius * radius / (MAX_NEIGHBOUR_FACTOR * MAX_NEIGHBOUR_FACTOR))
        if not found[p + k] > 0.0 and found[3 * p + k] > 0.0:  # unknown to all: the size of a whole column's effect
            found[p + k] = found[4 * p] / found[3 * p + k]
        level += (shift[k] - mean[k]) * me.cache.model[k]
    return spoken


@inline
def trust_of(evidence, me, doubt, rows):
    """Return the weight of the population: its share of the evidence."""
    facts = me.cache.facts
    if rows == 0 or (facts[SCALE] > 0.0 and rows < MIN_ROWS):
        return 1.0
    odds = evidence - facts[EVIDENCE] + math.log((1.0 - doubt) / doubt)
    if odds > MAX_LOG_ODDS:
        return 1.0
    return 1.0 / (1.0 + math.exp(-odds)) if odds > -MAX_LOG_ODDS else 0.0  # false for NaN


@noinline
def learn(data, me, found, anchor, doubt, scratch):
    """Compute the posterior given the population, mixed with the broad one, and the agent's new summary."""
    p, m, facts, shared = me.theta.shape[0], data.labels.shape[0], me.cache.facts, me.shared
    theta, root = scratch[:p], scratch[p : 2 * p]
    inverse, rest = scratch[2 * p : 2 * p + p * p], scratch[2 * p + p * p :]
    shift, noise = found[2 * p : 3 * p], found[4 * p]
    if m == 0:
        copy_to(found[: 4 * p + 1], shared)
        shared[p - 1] -= dot(shift, found[:p])
        copy_to(shared[:p], me.theta)
        return
    for k in range(p):
        root[k] = math.sqrt(found[p + k])
    copy_to(me.theta, theta)
    theta[p - 1] += dot(shift, me.theta)
    evidence = find_mode(data, noise, shift, found[:p], root, NEWTON_STEPS, theta, inverse, rest)
    trust = trust_of(evidence, me, doubt, m)
    anchor += (1.0 - anchor) * (1.0 - trust) * (1.0 - trust)  # do not repeat a distrusted population
    # The contribution; squared deviations are about the agent's new w.
    level, wide, residual, used = me.cache.model[p - 1], me.cache.variance[p - 1], 0.0, 0.0
    if facts[SCALE] > 0.0:
        residual = square_error(data, shift, theta, rest[:p])
    for k in range(p):
        known = inverse[k * p + k]  # Var_k / v_k
        used += 1.0 - known
        variance = found[p + k] * known
        varies = me.cache.spread[k] > 0.0
        if k < p - 1:
            broad = me.cache.model[k]
            about = me.cache.variance[k] if varies else found[p + k]  # its rows hold no information on it
            level += (shift[k] - me.cache.mean[k]) * broad
            wide += (shift[k] - me.cache.mean[k]) * (shift[k] - me.cache.mean[k]) * me.cache.variance[k]
        else:
            broad, about = level, wide
        mixed = trust * theta[k] + (1.0 - trust) * broad if trust > 0.0 else broad
        told = mixed if varies or k == p - 1 else (1.0 - CONSTANT_COLUMN_FADE) * mixed
        own = anchor * told + (1.0 - anchor) * found[k]
        square = (1.0 - trust) * ((broad - own) * (broad - own) + about)
        if trust > 0.0:
            square += trust * ((theta[k] - own) * (theta[k] - own) + variance)
        rest_of = found[p + k] + (found[k] - own) * (found[k] - own)
        shared[k], shared[p + k] = own, anchor * square + (1.0 - anchor) * rest_of
        me.theta[k] = mixed
        center = anchor * me.cache.mean[k] + (1.0 - anchor) * shift[k]
        mine = me.cache.spread[k] + (me.cache.mean[k] - center) * (me.cache.mean[k] - center)
        theirs = found[3 * p + k] + (shift[k] - center) * (shift[k] - center)
        shared[2 * p + k], shared[3 * p + k] = center, anchor * mine + (1.0 - anchor) * theirs
    me.theta[p - 1] -= dot(shift, me.theta)
    shared[p - 1] -= dot(shift, shared[:p])
    if facts[SCALE] > 0.0:
        residual = trust * (residual + noise * used) / m + (1.0 - trust) * facts[NOISE] if trust > 0.0 else facts[NOISE]
        shared[4 * p] = anchor * residual + (1.0 - anchor) * noise
    else:
        shared[4 * p] = 1.0


@inline
def know(data, me, edges, trim, doubt, intercept, mean, cov, wide, scratch):
    """Compute an agent's posterior of its own model, in raw units: mean, covariance, noise and trust."""
    p, m, room = me.theta.shape[0], data.labels.shape[0], room_of(data.peer.shape[0])
    begin(data, me, intercept, scratch)
    found, rest = scratch[: 4 * p + 1], scratch[4 * p + 1 + room :]
    theta, center, root, rest = rest[:p], rest[p : 2 * p], rest[2 * p : 3 * p], rest[3 * p :]
    inverse, rest = rest[: p * p], rest[p * p :]
    spoken = gather(data, me, edges, trim, found, scratch[4 * p + 1 : 4 * p + 1 + room])
    trust, noise, broad_noise = 0.0, 0.0, me.cache.facts[NOISE]
    copy_to(me.theta, mean)
    if spoken == 0 and m == 0:
        cov[:, :] = np.nan
        return np.nan, np.nan
    if spoken > 0:
        for k in range(p):
            root[k] = math.sqrt(found[p + k])
        copy_to(found[:p], mean)
        noise = found[4 * p]
        shift = found[2 * p : 3 * p]
        evidence = find_mode(data, noise, shift, found[:p], root, NEWTON_STEPS, mean, inverse, rest)
        trust = trust_of(evidence, me, doubt, m)
        in_raw_units(shift, mean, root, inverse, cov)
    if trust < 1.0:
        broad_prior(data, me, intercept, me.cache.facts[STRENGTH], center, root)
        for k in range(p - 1):
            if spoken > 0 and not me.cache.spread[k] > 0.0:  # the agent's rows hold no information on it
                root[k] = math.sqrt(found[p + k])
        copy_to(center, theta)
        find_mode(data, broad_noise, me.cache.mean, center, root, NEWTON_STEPS, theta, inverse, rest)
        in_raw_units(me.cache.mean, theta, root, inverse, wide)
        for k in range(p):
            for c in range(p):
                apart = (mean[k] - theta[k]) * (mean[c] - theta[c]) if trust > 0.0 else 0.0
                both = trust * (cov[k, c] + (1.0 - trust) * apart) if trust > 0.0 else 0.0
                cov[k, c] = both + (1.0 - trust) * wide[k, c]
        for k in range(p):
            mean[k] = theta[k] + (trust * (mean[k] - theta[k]) if trust > 0.0 else 0.0)
        noise = trust * noise + (1.0 - trust) * broad_noise
    return noise, trust


@kernel
def know_all(method, arrays, own, edge, mean, cov, noise, trust, wide, scratch):
    """Compute the posteriors of all hosted agents."""
    for i in range(mean.shape[0]):
        data, me, edges = agent(arrays, own, edge, i)
        noise[i], trust[i] = know(
            data, me, edges, method.trim, method.doubt, method.intercept, mean[i], cov[i], wide, scratch
        )


@kernel
def weigh_edges(method, arrays, own, edge, influence, peer, scratch):
    """Compute how far w would move without each neighbour, for all agents and edges, in units of their noise."""
    p = own.theta.shape[1]
    for i in range(own.theta.shape[0]):
        a, b = arrays.edge_start[i], arrays.edge_start[i + 1]
        data, me, edges = agent(arrays, own, edge, i)
        found, other, values = scratch[: 4 * p + 1], scratch[4 * p + 1 : 8 * p + 2], scratch[8 * p + 2 :]
        if gather(data, me, edges, method.trim, found, values) == 0:
            continue
        for t in range(a, b):
            if peer[t] == VACANT or not edges.heard[t - a, 4 * p] > 0.0:
                continue
            said = edges.heard[t - a, 4 * p]
            edges.heard[t - a, 4 * p] = 0.0
            square = 0.0
            if gather(data, me, edges, method.trim, other, values) > 0:
                other[p - 1] += dot(found[2 * p : 3 * p], other[:p]) - dot(other[2 * p : 3 * p], other[:p])
            else:
                copy_to(me.shared[:p], other)
                other[p - 1] += dot(found[2 * p : 3 * p], other[:p])
            edges.heard[t - a, 4 * p] = said
            for k in range(p):
                square += (found[k] - other[k]) * (found[k] - other[k]) * found[3 * p + k]
            influence[t] = math.sqrt(square / found[4 * p])


@inline
def is_sound(text):
    """Return whether an honest neighbour could have sent this text."""
    p = text.shape[0] // 4
    sound = text[4 * p] > 0.0
    for k in range(text.shape[0]):
        low = -MAX_NUMBER if k < p or 2 * p <= k < 3 * p else 0.0
        sound = sound and low <= text[k] <= MAX_NUMBER  # false for NaN
    return sound


@checked(
    anchor=partial(within, low=0, high=1, ends="(]"),
    trim=partial(within, low=0, high=0.5, ends="[)"),
    doubt=partial(within, low=0, high=0.5, ends="(]"),
    intercept=flag,
)
@method
class ResilientPooling(NamedTuple):
    """Partial pooling by gossip if members may lie, with columns and targets in raw units.

    For the squared and the logistic loss. An agent that wakes sends ``4 p + 1`` numbers to all neighbours; there are no
    answers. With four or more neighbours, extremes are left out; a population that contradicts an agent's own rows
    loses its weight; an agent without rows accepts the population. Like :class:`coterie.gossip.GossipPooling`, the
    method does not minimise the objective of the problem, and the weights of edges have no effect.

    Parameters
    ----------
    anchor : float
        Weight of an agent's own model in its summary of the population, above 0 and at most 1. Smaller values average
        over more agents, and take longer.
    trim : float
        Fraction of the neighbours left out at either end, in [0, 0.5); no neighbour is left out of fewer than ``1 /
        trim``.
    doubt : float
        Prior weight of an agent's own broad prior, above 0 and at most 0.5.
    intercept : bool
        Whether the last column consists of ones.

    Examples
    --------
    >>> import numpy as np
    >>> import coterie as ct
    >>> rng = np.random.default_rng(0)
    >>> X, owner = np.ones((60, 2)), np.repeat(np.arange(6), 10)
    >>> X[:, 0] = rng.normal(50.0, 10.0, size=60)
    >>> y = 15_000 + 3.0 * X[:, 0] + 20.0 * rng.normal(size=6)[owner] + rng.normal(size=60)
    >>> problem = ct.Problem.separate(ct.AgentData(X, y, agents=owner), ct.graphs.complete(6), loss="squared")
    >>> run = ct.simulate(problem, ct.gossip.ResilientPooling(), wakes=6 * 60, seed=0)
    >>> run.population.mean[:, 0].round(1).tolist()  # each agent's estimate of the common slope
    [3.0, 3.0, 3.0, 3.0, 3.0, 3.0]
    """

    anchor: float = 0.1
    trim: float = 0.25
    doubt: float = 0.05
    intercept: bool = True

    messages = {SUMMARY: (*MOMENTS, *MOMENTS, Number(0.0, MAX_NUMBER))}
    footprint = "edges"
    minimises = False  # it converges to a fixed point of its own

    fit_for = fits_likelihood

    def scratch_size(self, arrays, p):
        return 4 * p + 1 + room_of(int(np.diff(arrays.edge_start).max(initial=0))) + 2 * p + p * p + 4 * p

    def start(self, arrays, theta):
        n, p = theta.shape
        facts = np.zeros((n, 5))
        facts[:, SCALE] = arrays.loss.likelihood == GAUSSIAN
        broad = Broad(*(np.zeros((n, p)) for _ in range(4)), facts)
        own = Own(theta.copy(), np.zeros((n, 4 * p + 2)), broad)
        return own, Edge(np.zeros((arrays.peer.shape[0], 4 * p + 3)))

    def population(self, arrays, own, edge):
        p = own.theta.shape[1]
        known = own.shared[:, 4 * p] > 0.0
        parts = own.shared[:, :p], own.shared[:, p : 2 * p], own.shared[:, 4 * p : 4 * p + 1]
        mean, variance, noise = (np.where(known[:, None], part, np.nan) for part in parts)
        return Population(mean, variance, noise[:, 0])

    def posterior(self, arrays, own, edge):
        """Return the posteriors; for an agent that has heard from no neighbour, from its own rows only."""
        n, p = own.theta.shape
        known = Posterior(np.zeros((n, p)), np.zeros((n, p, p)), np.zeros(n), np.zeros(n))
        know_all(self, arrays, own, edge, *known, np.zeros((p, p)), np.zeros(self.scratch_size(arrays, p) + 2 * p))
        return known

    def influence(self, arrays, own, edge):
        """Return how far each edge moves the common model, as its effect on a typical row in units of the noise."""
        p = own.theta.shape[1]
        moved = np.zeros(arrays.peer.shape[0])
        weigh_edges(self, arrays, own, edge, moved, arrays.peer, np.zeros(self.scratch_size(arrays, p) + 4 * p + 1))
        return moved

    def greet(self, data, me, edges, outbox):
        """Send the agent's first summary, from its own rows."""
        begin(data, me, self.intercept, outbox.scratch)
        p = me.theta.shape[0]
        if me.shared[4 * p] > 0.0:
            send(outbox, EVERYONE, SUMMARY, me.shared[: 4 * p + 1])

    def wake(self, data, me, edges, randomness, outbox):
        """Update from the neighbours' summaries, and send the new one.

        An agent that has received none keeps its model.
        """
        p = me.theta.shape[0]
        begin(data, me, self.intercept, outbox.scratch)
        found, rest = outbox.scratch[: 4 * p + 1], outbox.scratch[4 * p + 1 :]
        room = room_of(data.peer.shape[0])
        if gather(data, me, edges, self.trim, found, rest[:room]) > 0:
            learn(data, me, found, self.anchor, self.doubt, rest[room:])
        if me.shared[4 * p] > 0.0:
            send(outbox, EVERYONE, SUMMARY, me.shared[: 4 * p + 1])

    def receive(self, data, me, edges, message, outbox):
        """Store the neighbour's summary."""
        if message.slot != VACANT and is_sound(message.text):
            copy_to(message.text, edges.heard[message.slot])

    def open(self, data, me, edges, slot):
        """No summary received yet."""
        fill(0.0, edges.heard[slot])
