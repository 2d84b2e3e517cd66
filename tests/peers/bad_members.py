"""Members that mean harm, as real processes: what the others must live with.

    COTERIE_PLAIN=1 python tests/peers/bad_members.py FOLDER CONDUCT [--data ROWS.csv]

The folder is that of a member; the process runs it as ``coterie peer run`` does, and then does what its conduct says.
Everything it sends is signed, and comes over its own connection.

=============  =======================================================================================================
``opposite``   lies: -10 times its model
``shift``      lies: its model, 10 times its own length off
``moderate``   lies: its model, one length off; spreads beside it are told to be small
``flood``      sends each message a hundred times, with new numbers
``replay``     sends each packet ten times, as it is
``huge``       sends beside each message one that is longer than any may be
=============  =======================================================================================================
"""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from coterie.engines.peer import Outgoing
from coterie.peers.node.launch import launch
from coterie.peers.node.mailbox import Send
from coterie.peers.node.node import Node

LIES = ("opposite", "shift", "moderate")
CONDUCTS = (*LIES, "flood", "replay", "huge")


def lie(conduct: str, text: np.ndarray, p: int) -> np.ndarray:
    """What a liar says in place of the numbers of a message, whose model comes first, and any spreads of it next."""
    said, model = text.copy(), text[:p]
    size = max(float(np.linalg.norm(model)), 1.0)
    if conduct == "opposite":
        said[:p] = -10.0 * model
    elif conduct == "shift":
        said[:p] = model + 10.0 * size
    else:
        said[:p] = model + size / p**0.5
        if text.size >= 2 * p:
            said[p : 2 * p] = 1e-3 * np.abs(text[p : 2 * p])
    return said


class BadNode(Node):
    """A node that does what its conduct says."""

    conduct = "opposite"

    def _packets(self, now: float, messages: Iterable[Outgoing]) -> list[Send]:
        messages = list(messages)
        if self.conduct in LIES:
            messages = [one._replace(text=lie(self.conduct, one.text, self.work.p)) for one in messages]
        out = super()._packets(now, messages)
        if self.conduct == "flood":
            for _ in range(99):
                out += super()._packets(now, messages)
        elif self.conduct == "replay":
            out = [send for send in out for _ in range(10)]
        elif self.conduct == "huge" and out:
            out.append(out[0]._replace(data=secrets.token_bytes(2 * self.charter.message_bytes)))
        return out


def main() -> None:
    """Run a member that means harm."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("conduct", choices=CONDUCTS)
    parser.add_argument("--data", type=Path)
    given = parser.parse_args()
    from coterie.peers.group.groups import membership
    from coterie.peers.node.jobs import prepared

    BadNode.conduct = given.conduct
    launch(given.folder, membership(given.folder), prepared(given.folder, given.data, None), kind=BadNode)


if __name__ == "__main__":
    main()
