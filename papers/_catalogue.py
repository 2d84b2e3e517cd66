"""All experiments, by name."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from coterie.errors import ParameterError

from ._experiment import Experiment

#: The papers, in the order of their publication.
PAPERS = {
    "propagation-admm": "Vanhaesebrouck, Bellet, Tommasi 2017, Decentralized Collaborative Learning of Personalized "
    "Models over Networks",
    "dmtrl": "Liu, Pan, Ho 2017, Distributed Multi-Task Relationship Learning",
    "private-descent": "Bellet, Guerraoui, Taziki, Tommasi 2017, Fast and Differentially Private Algorithms for "
    "Decentralized Collaborative Machine Learning",
    "djam": "Almeida, Xavier 2018, DJAM: Distributed Jacobi Asynchronous Method for Learning Personal Models",
    "dada": "Zantedeschi, Bellet, Tommasi 2020, Fully Decentralized Joint Learning of Personalized Models and "
    "Collaboration Graphs",
    "leaderboard": "All real datasets, all methods",
}


@cache
def experiments() -> dict[str, Experiment]:
    """Return all experiments by name, in the order of the papers; figures first, then tables."""
    found: dict[str, Experiment] = {}
    for paper in PAPERS:
        folder = importlib.import_module(f".{paper.replace('-', '_')}", __package__)
        names = sorted(module.name for module in pkgutil.iter_modules(folder.__path__))
        for name in names:
            if name.startswith(("figure_", "table_")) or name == paper:
                module = importlib.import_module(f"{folder.__name__}.{name}")
                called = paper if name == paper else f"{paper}-{name.replace('_', '-')}"
                found[called] = Experiment.of(called, module)
    return found


def find(name: str) -> list[Experiment]:
    """Return the experiment with this name, or all experiments of a paper, or all experiments for "all"."""
    known = experiments()
    if name == "all":
        return list(known.values())
    if name in known:
        return [known[name]]
    if of_paper := [experiment for experiment in known.values() if experiment.paper == name]:
        return of_paper
    near = [paper for paper in PAPERS if name.startswith(paper)]
    if near:
        there = ", ".join(other.name for other in known.values() if other.paper == near[0])
        raise ParameterError(f"there is no {name!r}; of {near[0]} there are: {there}")
    raise ParameterError(
        f"there is no {name!r}: expected 'all', a paper ({', '.join(PAPERS)}) or one of its experiments"
    )
