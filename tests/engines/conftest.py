"""Ray is started once for all tests."""

from __future__ import annotations

import sys

import pytest
import ray_here


@pytest.fixture(scope="session")
def ray_of_this_run():
    """Ends what tests have started."""
    with ray_here.marked():
        yield
        if "ray" in sys.modules:
            sys.modules["ray"].shutdown()


@pytest.fixture(scope="module")
def ray(ray_of_this_run):
    return ray_here.ray_here()
