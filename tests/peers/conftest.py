"""What tests of transports, and of peers as processes, share."""

from __future__ import annotations

import contextlib

import pytest


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    from tls_people import Authority

    return Authority(tmp_path_factory.mktemp("group") / "ca")


@pytest.fixture(scope="module")
def other_authority(tmp_path_factory):
    from tls_people import Authority

    return Authority(tmp_path_factory.mktemp("strangers") / "ca")


@pytest.fixture
def closing():
    """Closes what is entered in it, also when the test fails."""
    with contextlib.ExitStack() as stack:
        yield lambda thing: stack.enter_context(contextlib.closing(thing))


@pytest.fixture
def people(authority, closing):
    """Opens transports: ``people("ann", "bob")`` admit each other and are linked."""
    from tls_people import opened

    return lambda *names, **options: opened(authority, closing, names, **options)


@pytest.fixture
def bare(closing):
    """Connects as somebody might who does not run this program."""
    from tls_people import Bare

    return lambda endpoint, credentials, **options: closing(Bare(endpoint, credentials, **options))


@pytest.fixture
def processes(tmp_path):
    """Starts peers as processes, which end with the test."""
    from processes import Processes

    made = Processes(tmp_path)
    yield made
    made.stop()
