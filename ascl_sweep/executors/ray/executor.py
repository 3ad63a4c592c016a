"""Ray executor: Ray Tune for runs of one worker, Ray Train inside Tune for runs of several.

Ray reads its settings when it is imported, so this module imports Ray only when a session opens.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ascl_sweep.runtime.cluster import Cluster
from ascl_sweep.runtime.executor import RunSource
from ascl_sweep.spec.sweep import Resources

if TYPE_CHECKING:
    from ray import tune

    from ascl_sweep.executors.ray.shared_data import SharedData


class RayExecutor:
    """Executes runs on a Ray cluster, or on a private Ray on this machine."""

    def __init__(
        self,
        address: str | None = None,
        make_trainable: "Callable[[], type[tune.Trainable]] | None" = None,
    ) -> None:
        """Configure the executor; `open` connects to Ray.

        Args:
            address: Address of a Ray cluster, or "auto"; None for a private Ray.
            make_trainable: Replaces the trainable of one-worker runs, for benchmarks.
        """
        self._address, self._make_trainable = address, make_trainable
        self.opening = f"connecting to Ray at {address} …" if address else "starting Ray …"

    @contextmanager
    def open(self, kinds: Sequence[Resources]) -> Iterator["RaySession"]:
        """Start a private Ray or connect to a cluster."""
        from ascl_sweep.executors.ray.cluster import connect_ray

        several = any(kind.workers > 1 for kind in kinds)
        with connect_ray(self._address, dashboard=several) as scratch:
            from ascl_sweep.executors.ray.shared_data import SharedData
            from ascl_sweep.executors.ray.trainable import OneWorker

            private = self._address is None
            read = _cluster_reader(several, private)
            trainable = self._make_trainable() if self._make_trainable else OneWorker
            shared = SharedData(read, private)
            yield RaySession(read, shared, scratch, trainable)


def _cluster_reader(several: bool, private: bool) -> Callable[[], Cluster]:
    from ascl_sweep.executors.ray.cluster import read_cluster
    from ascl_sweep.executors.ray.compat import release_leaked_placement_groups

    def read() -> Cluster:
        if several:
            release_leaked_placement_groups()
        return read_cluster(private=private)

    return read


@dataclass(frozen=True)
class RaySession:
    """Open connection to Ray."""

    read_cluster: Callable[[], Cluster]
    shared_data: "SharedData"
    scratch: Path
    """Folder for temporary files of Ray; deleted at the end."""
    trainable: "type[tune.Trainable]"

    def execute(self, source: RunSource) -> None:
        """Execute the tasks of the source with Ray Tune until it is over and idle."""
        from ascl_sweep.executors.ray.tune import run_tune

        run_tune(source, self.shared_data, self.scratch, self.trainable)
