"""Python API: the functions of the command line for scripts and notebooks.

>>> import ascl_sweep
>>> sweep = ascl_sweep.load_sweep("search_spaces/quickstart.yaml")
>>> ascl_sweep.plan([sweep], store="results").epochs        # doctest: +SKIP
>>> ascl_sweep.run([sweep], store="results")                # doctest: +SKIP
>>> ascl_sweep.build_report("results")                      # doctest: +SKIP
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ascl_sweep.contracts import Scalar
    from ascl_sweep.report.report import Report
    from ascl_sweep.runtime.callbacks.base import Callback
    from ascl_sweep.runtime.controller import End
    from ascl_sweep.runtime.executor import Executor
    from ascl_sweep.search.plan import Plan
    from ascl_sweep.spec.smoke import Scale
    from ascl_sweep.spec.sweep import SweepSpec
    from ascl_sweep.store.store import Store


def load_sweep(
    path: str | Path, overrides: Sequence[str] = (), scale: "Scale" = "full"
) -> "SweepSpec":
    """Read and validate a sweep file.

    Args:
        path: The YAML file.
        overrides: Changes such as "epochs=5" or "optim.lr=0.03".
        scale: "full", or "laptop" for small data and networks (minutes on a CPU).

    Raises:
        ascl.errors.ConfigError: Lists all errors of the file.
    """
    from ascl_sweep.spec.sweep import load_sweep

    return load_sweep(path, overrides, scale)


def open_store(address: str | Path = "results") -> "Store":
    """Open a store for reading. The store need not exist.

    Args:
        address: A folder, or an address such as s3://bucket/results.
    """
    from ascl_sweep.store.store import Store

    return Store(address)


def plan(sweeps: Sequence["SweepSpec"], store: "str | Path | Store" = "results") -> "Plan":
    """Plan sweeps: which runs are already in the store, and what the remaining runs cost."""
    from ascl_sweep.runtime.sweeps import prepare_sweeps

    return prepare_sweeps(sweeps, _store(store)).plan()


def run(
    sweeps: Sequence["SweepSpec"],
    store: "str | Path | Store" = "results",
    *,
    executor: "str | Executor" = "ray",
    address: str | None = None,
    concurrency: int | None = None,
    retry_diverged: bool = False,
    wait: bool = False,
    loggers: Sequence[str] = (),
    callbacks: Iterable["Callback"] = (),
) -> "End":
    """Run every run of the sweeps that is not in the store yet.

    Repeat the call at any time: finished runs are skipped, interrupted runs resume.

    Args:
        sweeps: Sweeps from `load_sweep`.
        store: Store of the results: an open store, a folder or an address.
        executor: "ray", "local" (one run at a time in this process), or an Executor.
        address: Address of a Ray cluster; None starts a private Ray on this machine.
        concurrency: Maximum number of parallel runs; None for as many as fit.
        retry_diverged: Whether to retry runs that diverged. Failed runs are always retried.
        wait: Whether to wait if another driver is writing to the store.
        loggers: Any of "tensorboard", "wandb" and "mlflow".
        callbacks: Receive every event; see `ascl_sweep.runtime.callbacks.base.Callback`.

    Returns:
        Why the sweeps ended: `End.DONE`, `End.FAILED` (some runs failed), …

    Raises:
        ascl_sweep.errors.AsclSweepError: StoreBusyError, ResourceError, ClusterError, SweepFailed.
    """
    from ascl_sweep.contracts import RunState
    from ascl_sweep.doctor.machine import require_here
    from ascl_sweep.executors import make_executor
    from ascl_sweep.runtime.callbacks.base import Callbacks
    from ascl_sweep.runtime.sweeps import prepare_sweeps, run_sweeps

    retry = (RunState.DIVERGED,) if retry_diverged else ()
    prepared = prepare_sweeps(sweeps, _store(store), retry)
    if isinstance(executor, str) and address is None and prepared.plan().epochs:
        require_here(sweeps)
    return run_sweeps(
        prepared,
        make_executor(executor, address) if isinstance(executor, str) else executor,
        Callbacks(callbacks),
        concurrency=concurrency,
        wait=wait,
        loggers=loggers,
    )


def build_report(
    store: "str | Path | Store" = "results",
    sweeps: Sequence[str] = (),
    *,
    metric: str | None = None,
    epoch: Literal["last", "best"] = "last",
    baseline: "Mapping[str, Scalar] | None" = None,
    region: float | None = None,
) -> "Report":
    """Build the report of a store's sweeps.

    A notebook displays the report as tables; `to_pandas()` returns the results as a data frame.

    Args:
        store: Store of the results: an open store, a folder or an address.
        sweeps: Names of sweeps; empty for all sweeps of the store.
        metric: Metric to compare, e.g. "knn_top1"; None for each sweep's own metric.
        epoch: Epoch whose score counts: the last, or the best on the scored images.
        baseline: Values that select the baseline arm, e.g. {"method.relabel": "none"}.
        region: Half-width of the equivalence region in points; None for 0.5.
    """
    from ascl_sweep.analysis.comparison import REGION, Options
    from ascl_sweep.report.report import build_report

    options = Options(metric, epoch, baseline, REGION if region is None else region)
    return build_report(_store(store), sweeps, options)


def _store(store: "str | Path | Store") -> "Store":
    return open_store(store) if isinstance(store, str | Path) else store
