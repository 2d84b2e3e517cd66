"""What methods of one's own are written with: parts of messages, how to send them, sums, gradients, training.

How to use it: docs/how-to/bring-a-method.md.
"""

from .core.arrays import (
    EVERYONE,
    VACANT,
    AgentArrays,
    add_loss_gradient,
    choose,
    importance,
    loss_of,
    owners,
    send,
)
from .core.linear import axpy, copy_to, dot, fill, gather, scatter, total
from .core.messages import (
    Addresses,
    Average,
    Bounds,
    Choices,
    Contents,
    Counter,
    Largest,
    Levels,
    Number,
    Numbers,
    Pairs,
    Single,
    SingleVector,
    Vector,
)
from .core.training import Job, new_job

__all__ = [
    "EVERYONE",
    "VACANT",
    "Addresses",
    "AgentArrays",
    "Average",
    "Bounds",
    "Choices",
    "Contents",
    "Counter",
    "Job",
    "Largest",
    "Levels",
    "Number",
    "Numbers",
    "Pairs",
    "Single",
    "SingleVector",
    "Vector",
    "add_loss_gradient",
    "axpy",
    "choose",
    "copy_to",
    "dot",
    "fill",
    "gather",
    "importance",
    "loss_of",
    "new_job",
    "owners",
    "scatter",
    "send",
    "total",
]
