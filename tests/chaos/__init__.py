"""A deterministic simulator of faults: it runs the code of real peers, with faults of every kind drawn from a seed.

Messages are late, lost, doubled and out of order; the network falls apart and comes together; peers crash in the
middle of what they do, with what they have saved and nothing else; disks refuse to write; clocks run at different
speeds; members join and leave; and an adversary replays what it has seen, mutates it, and sends what no honest peer
would. On top of that weather come faults by name (:data:`FAULTS`), any of them in any seed:

==========  ==============================================================================================
liars       a fifth of the members send lies that pass every check, for ever
floods      a member sends a hundred times as much as it should
clocks      a peer starts with a clock that is years ahead or behind, with or without its state; then again
disks       a disk is full for a long while, then works
backups     the folder of a peer is put back to an older state
fork        the admin goes on from a backup, so that there are two rosters, and heals it
removal     a member is removed while it is down, and comes back
==========  ==============================================================================================

Then the faults stop, and the following must hold: the models of the remaining members reach the exact optimum of their
problem, or, among liars, the error of an honest member is at most a third larger than it would be alone, or among
honest members only; every member hears its neighbours again; removed members know it; a fork was detected and is
healed; no budget was exceeded.

At all times: no peer uses a number of a message twice; no message that fails a check reaches a method, and no message
reaches it twice; no release is made twice with different noise; a restarted peer goes on from what it had saved.

    python tests/chaos --seeds 1000        (make chaos SEEDS=1000)
    python tests/chaos --seed 17           one seed again, exactly
    python tests/chaos --fault liars       one fault alone
"""

from __future__ import annotations

from .faults import FAULTS
from .simulated import Chaos, Report, run_seed
from .tasks import TASKS
from .weather import Weather

__all__ = ["FAULTS", "TASKS", "Chaos", "Report", "Weather", "run_seed"]
