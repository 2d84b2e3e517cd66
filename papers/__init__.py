"""Reproductions of the papers' figures and tables, with one folder for each paper.

``python -m papers NAME`` runs an experiment, ``python -m papers --list`` lists all. Each module is an experiment:

plan(quick)     settings of independent pieces, see :class:`Experiment`
work(...)       runs one piece and returns its results
numbers(rows)   the numbers of the table of claims, by name
CLAIMS          the table: the quantity, the paper's number, the name of our number, and the tolerance
draw(rows)      the figure
tables(rows)    further tables to print, optional
MINUTES, DATA   minutes of one core at full size; names of the real datasets, optional

The first line of its docstring is the title.
"""

from ._catalogue import PAPERS, experiments, find
from ._claims import Alike, Claim, Compared, Ordered, judged
from ._experiment import Experiment
from ._runner import Outcome, reproduce

__all__ = [
    "PAPERS",
    "Alike",
    "Claim",
    "Compared",
    "Experiment",
    "Ordered",
    "Outcome",
    "experiments",
    "find",
    "judged",
    "reproduce",
]
