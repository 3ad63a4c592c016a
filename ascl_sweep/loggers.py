"""`--log`: a copy of what the ledger gets, for TensorBoard, Weights & Biases or MLflow.

A run has its own id there and its steps are epochs, so that one that was interrupted goes on as the
same run. A thread of its own makes the copies: a service that is slow or away holds up no sweep.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol

from ascl.faults import unknown_name
from ascl_sweep.labels import one_line
from ascl_sweep.ledger import RunRow

PATIENCE_SECONDS = 120.0  # for what is not yet copied when a sweep ends
BATCH = 100  # parameters that MLflow takes at once
WENT_WRONG = ("failed", "diverged")


class Logger(Protocol):
    """Where copies go. A run may be started again, in this process or a later one."""

    def started(self, sweep: str, row: RunRow) -> None: ...

    def epoch(self, run_id: str, epoch: int, metrics: Mapping[str, float]) -> None: ...

    def ended(self, row: RunRow) -> None: ...


class Copies:
    """Hands on to every logger, in order; one that fails is left off, and said so once."""

    def __init__(
        self,
        loggers: Mapping[str, Logger] | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._loggers, self._say = dict(loggers or {}), say
        self._todo: SimpleQueue[Callable[[Logger], None] | None] = SimpleQueue()
        self._thread = Thread(target=self._work, daemon=True)
        if self._loggers:
            self._thread.start()

    def started(self, sweep: str, row: RunRow) -> None:
        self._put(lambda logger: logger.started(sweep, row))

    def epoch(self, run_id: str, metrics: Mapping[str, Any]) -> None:
        epoch = metrics["epoch"]
        measured = {k: v for k, v in metrics.items() if k != "epoch" and v is not None}
        self._put(lambda logger: logger.epoch(run_id, epoch, measured))

    def ended(self, row: RunRow) -> None:
        self._put(lambda logger: logger.ended(row))

    def close(self, patience: float = PATIENCE_SECONDS) -> None:
        """Wait until all is copied, but not for ever."""
        self._put(None)
        if self._thread.is_alive():
            self._thread.join(patience)
        if self._thread.is_alive():
            self._say(
                f"--log {', '.join(self._loggers)}: not all is copied yet, and we wait no more"
            )

    def _put(self, act: Callable[[Logger], None] | None) -> None:
        if self._loggers:
            self._todo.put(act)

    def _work(self) -> None:
        while (act := self._todo.get()) is not None:
            for name, logger in list(self._loggers.items()):
                try:
                    act(logger)
                except Exception as error:  # they have no common base for what they raise
                    del self._loggers[name]
                    why = one_line(error)
                    self._say(f"--log {name} is left off, the store has everything: {why}")


@contextmanager
def copies(names: Sequence[str], store: str, say: Callable[[str], None]) -> Iterator[Copies]:
    """Copies to the loggers of these names, made while the sweeps run."""
    made = Copies({name: _opened(name, store) for name in names}, say)
    patience = 1.0  # after a second Ctrl-C
    try:
        yield made
        patience = PATIENCE_SECONDS
    finally:
        made.close(patience)


def _opened(name: str, store: str) -> Logger:
    try:
        return LOGGERS[name](store)
    except Exception as error:  # as above
        raise ValueError(f"--log {name} cannot be used: {one_line(error)}") from error


def check_loggers(names: Sequence[str], store: str) -> None:
    """Raise ValueError for a logger that there is not, or that cannot be used."""
    for name in names:
        if name not in LOGGERS:
            raise ValueError(unknown_name("logger", name, LOGGERS))
        package = PACKAGES[name]
        if find_spec(package) is None:
            raise ValueError(f"--log {name} needs the package {package}; pip install {package}")
    if "tensorboard" in names and "://" in store:
        raise ValueError(
            f"--log tensorboard writes into the store, which must be a folder, got {store}; "
            "try --log mlflow or wandb"
        )


class TensorBoard:
    """Event files in the store: `tensorboard --logdir results/tensorboard`."""

    def __init__(self, store: str) -> None:
        self._folder = Path(store) / "tensorboard"
        self._writers: dict[str, Any] = {}

    def started(self, sweep: str, row: RunRow) -> None:
        from tensorboardX import SummaryWriter

        if row.run_id in self._writers:
            return
        writer = SummaryWriter(str(self._folder / sweep / row.run_id))
        lines = [f"    {key}: {value}" for key, value in row.config.items()]  # Markdown's code
        writer.add_text("config", "\n".join(lines))
        self._writers[row.run_id] = writer

    def epoch(self, run_id: str, epoch: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writers[run_id].add_scalar(name, value, epoch)
        self._writers[run_id].flush()

    def ended(self, row: RunRow) -> None:
        self._writers.pop(row.run_id).close()


class Wandb:
    """A project for each sweep; where, who and whether offline is said in wandb's own ways."""

    def __init__(self, store: str) -> None:
        import wandb

        self._runs: dict[str, Any] = {}
        if wandb.setup().settings.mode not in ("offline", "dryrun", "disabled"):
            wandb.login()  # may ask on a terminal: now, not beside the display

    def started(self, sweep: str, row: RunRow) -> None:
        import wandb

        if row.run_id in self._runs:
            return
        self._runs[row.run_id] = wandb.init(
            project=sweep,
            id=row.run_id,
            name=row.run_id,
            config=dict(row.config),
            resume="allow",
            reinit="create_new",  # several at once
            # Output and load of this process are not those of the run.
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
        )

    def epoch(self, run_id: str, epoch: int, metrics: Mapping[str, float]) -> None:
        self._runs[run_id].log(dict(metrics), step=epoch)

    def ended(self, row: RunRow) -> None:
        self._runs.pop(row.run_id).finish(exit_code=int(row.state in WENT_WRONG))


class MLflow:
    """An experiment for each sweep, at MLFLOW_TRACKING_URI or where MLflow puts it by default."""

    def __init__(self, store: str) -> None:
        from mlflow import MlflowClient

        self._client = MlflowClient()
        self._runs: dict[str, str] = {}  # run → MLflow's own id of it

    def started(self, sweep: str, row: RunRow) -> None:
        from mlflow.entities import Param

        if row.run_id in self._runs:
            return
        client = self._client
        experiment = client.get_experiment_by_name(sweep)
        place = experiment.experiment_id if experiment else client.create_experiment(sweep)
        named = f"attributes.run_name = '{row.run_id}'"
        if found := client.search_runs([place], named, max_results=1):
            run = found[0].info.run_id
            client.update_run(run, status="RUNNING")
        else:
            run = client.create_run(place, run_name=row.run_id).info.run_id
            values = [Param(key, str(value)) for key, value in row.config.items()]
            for i in range(0, len(values), BATCH):
                client.log_batch(run, params=values[i : i + BATCH])
        self._runs[row.run_id] = run

    def epoch(self, run_id: str, epoch: int, metrics: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        values = [Metric(name, value, now, epoch) for name, value in metrics.items()]
        self._client.log_batch(self._runs[run_id], metrics=values)

    def ended(self, row: RunRow) -> None:
        status = "FAILED" if row.state in WENT_WRONG else "FINISHED"
        self._client.set_terminated(
            self._runs.pop(row.run_id), "KILLED" if row.state == "planned" else status
        )


LOGGERS: Mapping[str, Callable[[str], Logger]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "mlflow": MLflow,
}
"""By what `--log` calls them; each needs its package."""
PACKAGES = {"tensorboard": "tensorboardX", "wandb": "wandb", "mlflow": "mlflow"}
