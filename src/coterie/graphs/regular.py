"""Random regular graphs: ends of ties are joined at random, and what is no tie is switched away.

The configuration model joins n * degree ends at random. A few of its pairs are loops or come twice: some degree^2 / 4
of them, however large n is. Each is switched with another pair, (a, b), (c, e) -> (a, e), (c, b), which leaves all
degrees as they are. That favours some graphs a little, by an amount that vanishes as n grows; in a small graph, random
switches go on until it is forgotten: their walk has the uniform distribution over all simple graphs of these degrees.
"""

from __future__ import annotations

import numpy as np

from .graph import Bools, Ints

#: Rounds of repair before ends are joined anew; one or two do, and some twenty where everybody has n/2 ties.
ROUNDS = 200
#: Graphs with so many ties at most walk on, by so many random switches for each tie.
SMALL, WALK = 5_000, 10


def regular_edges(n: int, degree: int, random: np.random.Generator) -> tuple[Ints, Ints]:
    """The two ends of each tie, for a degree below n / 2 with n * degree even; time and memory grow as n * degree."""
    edges = n * degree // 2
    while True:
        ends = np.repeat(np.arange(n, dtype=np.int64), degree)
        random.shuffle(ends)
        a, b = ends[:edges], ends[edges:]
        if _repair(a, b, n, random):
            break
    if edges <= SMALL:
        _walk(a, b, random)
    return a, b


def _keys(a: Ints, b: Ints, n: int) -> Ints:
    """One number for each unordered pair."""
    keys: Ints = np.minimum(a, b) * n + np.maximum(a, b)
    return keys


def _repair(a: Ints, b: Ints, n: int, random: np.random.Generator) -> bool:
    """Switch loops and pairs that are there already, in place; says whether that came to an end."""
    for _ in range(ROUNDS):
        keys = _keys(a, b, n)
        order = np.argsort(keys, kind="stable")
        there = keys[order]
        bad: Bools = a == b
        bad[order[1:]] |= there[1:] == there[:-1]  # the first of equal pairs stays
        wrong = np.flatnonzero(bad)
        if not wrong.size:
            return True
        random.shuffle(wrong)
        partner = random.integers(a.size, size=wrong.size)
        turned = random.random(wrong.size) < 0.5
        c, e = np.where(turned, b[partner], a[partner]), np.where(turned, a[partner], b[partner])
        new = np.stack((_keys(a[wrong], e, n), _keys(c, b[wrong], n)))
        at = np.minimum(np.searchsorted(there, new), a.size - 1)
        fine = ~bad[partner] & (a[wrong] != e) & (c != b[wrong]) & (there[at] != new).all(axis=0)
        wrong, partner, c, e, new = wrong[fine], partner[fine], c[fine], e[fine], new[:, fine]
        # All at once: no two switches may use one partner, or make one pair; the first that would is taken.
        claims = np.concatenate((new[0], new[1], n * n + partner))
        _, first, claim = np.unique(claims, return_index=True, return_inverse=True)
        mine = np.tile(np.arange(wrong.size), 3)
        earliest = np.full(first.size, wrong.size)
        np.minimum.at(earliest, claim.ravel(), mine)
        alone = (earliest[claim.ravel()] == mine).reshape(3, -1).all(axis=0) & (new[0] != new[1])
        wrong, partner, c, e = wrong[alone], partner[alone], c[alone], e[alone]
        b[wrong], b[partner], a[partner] = e, b[wrong], c
    return False


def _walk(a: Ints, b: Ints, random: np.random.Generator) -> None:
    """Random switches, one after the other; one that would make a loop or a double tie is not done, and counts."""
    edges, steps = a.size, WALK * a.size
    ends = [a.tolist(), b.tolist()]
    there = {frozenset(pair) for pair in zip(*ends, strict=True)}
    pairs, turns = random.integers(edges, size=(steps, 2)).tolist(), random.integers(2, size=steps).tolist()
    for (k, other), turn in zip(pairs, turns, strict=True):
        u, v, c, e = ends[0][k], ends[1][k], ends[turn][other], ends[1 - turn][other]
        one, two = frozenset((u, e)), frozenset((c, v))
        if k == other or len(one) == 1 or len(two) == 1 or one == two or one in there or two in there:
            continue
        there -= {frozenset((u, v)), frozenset((c, e))}
        there |= {one, two}
        ends[1][k], ends[turn][other], ends[1 - turn][other] = e, c, v
    a[:], b[:] = ends
