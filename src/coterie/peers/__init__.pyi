from .group.charter import Charter, make_charter
from .group.roster import Roster
from .node.node import Node

__all__ = ["Charter", "Node", "Roster", "make_charter"]
