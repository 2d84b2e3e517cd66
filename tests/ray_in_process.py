"""What an engine needs of Ray, in this process: a call is answered at once."""

from __future__ import annotations

import types
from contextlib import contextmanager

import coterie as ct


class Here:
    """Ray for tests that are about what shards do, not about where they are."""

    class exceptions:  # noqa: N801 - as Ray has it
        class RayError(Exception):
            pass

        class RayTaskError(RayError):
            pass

        class RayActorError(RayError):
            pass

        class ObjectLostError(RayError):
            pass

    class Actor:
        def __init__(self, kind, *args):
            self.made = kind(*args)

        def __getattr__(self, name):
            call = types.SimpleNamespace(remote=getattr(self.made, name))
            call.options = lambda num_returns: call
            return call

    def remote(self, **_):
        return lambda kind: types.SimpleNamespace(remote=lambda *args: Here.Actor(kind, *args))

    def nodes(self):
        return [{"Alive": True, "Resources": {"CPU": 4.0}}, {"Alive": False, "Resources": {"CPU": 9.0}}]

    def wait(self, references, **_):
        return references, []

    def get(self, references):
        return references

    def kill(self, _):
        pass


class Silent:
    """In place of the log of a worker, which would be that of the tests."""

    def __init__(self, level):
        pass

    def take(self):
        return []


class Local(ct.Cluster):
    """A cluster in this process."""

    @contextmanager
    def connect(self):
        yield Here()
