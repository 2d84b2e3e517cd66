"""The papers' figures and tables, a folder for each paper, and our numbers beside the papers'.

``python -m papers NAME`` runs one, ``python -m papers --list`` says what there is. A module is an experiment:

plan(quick)     settings of independent pieces, see :class:`Experiment`
work(...)       what one piece finds
numbers(rows)   what the table of claims is about, by name
CLAIMS          the table: what is measured, what the paper has, which of the numbers is ours, and how near it must be
draw(rows)      the figure
tables(rows)    further tables to print, if there are any
MINUTES, DATA   of one core at full size; the real datasets it needs, if any

Its first line says what it shows.
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
