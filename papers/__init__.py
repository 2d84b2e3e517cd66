"""The papers' figures and tables, one experiment each, and our numbers beside the papers'.

An :class:`Experiment` is a plan of independent pieces, what one piece works out, what the paper claims about the
numbers, and a figure. :func:`reproduce` runs one, keeps every finished piece, and so goes on where it was interrupted.
"""

from .catalogue import PAPERS, experiments, find
from .claims import Claim, alike, compared, ordered
from .experiment import Experiment
from .runner import Outcome, reproduce

__all__ = [
    "PAPERS",
    "Claim",
    "Experiment",
    "Outcome",
    "alike",
    "compared",
    "experiments",
    "find",
    "ordered",
    "reproduce",
]
