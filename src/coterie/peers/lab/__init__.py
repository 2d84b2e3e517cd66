"""Many real peers on this machine: every peer is a process of its own, and talks to its neighbours over mutual TLS.

The folder of a lab:

======================  ==============================================================================================
``group``               the admin's folder
``p0``, ``p1``, ...     the peers' folders; beside the usual files ``rows.csv``, the ``work`` made of it, and ``log``
``p0/blocked``          addresses that a partition keeps away from a peer
``p0/paused``           the peer is stopped, and may be continued
``p0/start``            another process asks the lab to start the peer again
``lock``, ``lab.json``  the process of the lab, and how many peers there are
``report.json``         what the lab saw at its last look
======================  ==============================================================================================

Only the process of the lab starts peers; any process may do the rest to them.
"""

from .lab import Faults, Lab, watch
from .tasks import LabTask, charter_fields, from_table, synthetic

__all__ = ["Faults", "Lab", "LabTask", "charter_fields", "from_table", "synthetic", "watch"]
