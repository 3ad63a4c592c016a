"""Weights & Biases logger: one project per sweep. Configure the account and mode with wandb."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ascl_sweep.contracts import RunRow
from ascl_sweep.runtime.callbacks.logger import FAILED_STATES

if TYPE_CHECKING:
    from wandb import Run


class Logger:
    package = "wandb"
    needs_local_store = False

    def __init__(self, store: str) -> None:
        import wandb

        self._runs: dict[str, Run] = {}
        if wandb.setup().settings.mode not in ("offline", "dryrun", "disabled"):
            wandb.login()  # may prompt: do so before the live display starts

    def on_run_start(self, sweep: str, row: RunRow) -> None:
        import wandb

        if row.run_id in self._runs:
            return
        self._runs[row.run_id] = wandb.init(
            project=sweep,
            id=row.run_id,
            name=row.run_id,
            config=dict(row.config),
            resume="allow",
            reinit="create_new",  # several runs in one process
            # The output and load of this process are not those of the run.
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
        )

    def on_epoch(self, run_id: str, epoch: int, metrics: Mapping[str, float]) -> None:
        self._runs[run_id].log(dict(metrics), step=epoch)

    def on_run_end(self, row: RunRow) -> None:
        self._runs.pop(row.run_id).finish(exit_code=int(row.state in FAILED_STATES))
