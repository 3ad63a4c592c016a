"""Fixtures of the tests on real Ray clusters."""

from collections.abc import Iterator

import pytest
from ray.cluster_utils import Cluster

from tests.faults.machines import start_cluster


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Cluster whose head offers no CPUs."""
    made = start_cluster()
    try:
        yield made
    finally:
        made.shutdown()
