from .charter import Charter, make_charter
from .node import Node
from .roster import Roster

__all__ = ["Charter", "Node", "Roster", "make_charter"]
