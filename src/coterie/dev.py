"""What methods of one's own are written with: parts of messages, how to send them, sums, gradients, training.

How to use it: docs/how-to/bring-a-method.md.
"""

from .core.arrays import EVERYONE, SHARED, TIED, VACANT, add_loss_gradient, choose, importance, loss_of, send
from .core.compile import inline
from .core.linear import axpy, copy_to, dot, fill, gather, scatter, total
from .core.messages import (
    Addresses,
    Average,
    Choices,
    Counter,
    Largest,
    Levels,
    Loss,
    Number,
    Numbers,
    Pairs,
    Part,
    Single,
    Vector,
)
from .core.methods import METHODS
from .core.mixing import MESSAGES, METROPOLIS, WEIGHTS, average, hear, new_edges, open_edge, tell
from .core.training import ALL, COMMON, DRAWN, EVERY, LOSS, OWN, PART, PULL, STEPS, Job, new_job

__all__ = [
    "ALL",
    "COMMON",
    "DRAWN",
    "EVERY",
    "EVERYONE",
    "LOSS",
    "MESSAGES",
    "METHODS",
    "METROPOLIS",
    "OWN",
    "PART",
    "PULL",
    "SHARED",
    "STEPS",
    "TIED",
    "VACANT",
    "WEIGHTS",
    "Addresses",
    "Average",
    "Choices",
    "Counter",
    "Job",
    "Largest",
    "Levels",
    "Loss",
    "Number",
    "Numbers",
    "Pairs",
    "Part",
    "Single",
    "Vector",
    "add_loss_gradient",
    "average",
    "axpy",
    "choose",
    "copy_to",
    "dot",
    "fill",
    "gather",
    "hear",
    "importance",
    "inline",
    "loss_of",
    "new_edges",
    "new_job",
    "open_edge",
    "scatter",
    "send",
    "tell",
    "total",
]
