"""All experiments, by name."""

from __future__ import annotations

import importlib
from functools import cache

from coterie.errors import ParameterError

from .experiment import Experiment

#: The papers, in the order of their publication, and the modules their experiments are in.
PAPERS = {
    "propagation-admm": (
        "Vanhaesebrouck, Bellet, Tommasi 2017, Decentralized Collaborative Learning of Personalized Models over "
        "Networks",
        ("propagation_admm",),
    ),
    "dmtrl": ("Liu, Pan, Ho 2017, Distributed Multi-Task Relationship Learning", ("dmtrl",)),
    "private-descent": (
        "Bellet, Guerraoui, Taziki, Tommasi 2017, Fast and Differentially Private Algorithms for Decentralized "
        "Collaborative Machine Learning",
        ("private_descent",),
    ),
    "djam": (
        "Almeida, Xavier 2018, DJAM: Distributed Jacobi Asynchronous Method for Learning Personal Models",
        ("djam",),
    ),
    "dada": (
        "Zantedeschi, Bellet, Tommasi 2020, Fully Decentralized Joint Learning of Personalized Models and "
        "Collaboration Graphs",
        ("dada_moons", "dada_real"),
    ),
    "leaderboard": ("All real datasets, all methods", ("leaderboard",)),
}


@cache
def experiments() -> dict[str, Experiment]:
    """All experiments by their names, in the order of the papers.

    Returns
    -------
    dict of str to Experiment

    Examples
    --------
    >>> "dmtrl-table-2" in experiments()
    True
    """
    found: dict[str, Experiment] = {}
    for _, modules in PAPERS.values():
        of_paper: dict[str, Experiment] = {}
        for module in modules:
            listed = importlib.import_module(f".{module}", __package__).EXPERIMENTS
            of_paper |= {experiment.name: experiment for experiment in listed}
        found |= {name: of_paper[name] for name in sorted(of_paper)}  # figures first, then tables
    return found


def find(name: str) -> list[Experiment]:
    """The experiment of this name, or all of a paper, or "all" there are.

    Parameters
    ----------
    name : str

    Returns
    -------
    list of Experiment

    Examples
    --------
    >>> [experiment.name for experiment in find("djam")]
    ['djam-figure-1']
    >>> find("djam-figure-9")
    Traceback (most recent call last):
    coterie.errors.ParameterError: there is no 'djam-figure-9'; of djam there are: djam-figure-1
    """
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
