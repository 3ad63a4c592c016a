"""TensorBoard logger: event files in the store (`tensorboard --logdir results/tensorboard`)."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ascl_sweep.contracts import RunRow

if TYPE_CHECKING:
    from tensorboardX import SummaryWriter


class Logger:
    package = "tensorboardX"
    needs_local_store = True

    def __init__(self, store: str) -> None:
        self._folder = Path(store) / "tensorboard"
        self._writers: dict[str, SummaryWriter] = {}

    def on_run_start(self, sweep: str, row: RunRow) -> None:
        from tensorboardX import SummaryWriter

        if row.run_id in self._writers:
            return
        writer = SummaryWriter(str(self._folder / sweep / row.run_id))
        lines = [f"    {key}: {value}" for key, value in row.config.items()]  # Markdown code
        writer.add_text("config", "\n".join(lines))
        self._writers[row.run_id] = writer

    def on_epoch(self, run_id: str, epoch: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writers[run_id].add_scalar(name, value, epoch)
        self._writers[run_id].flush()

    def on_run_end(self, row: RunRow) -> None:
        self._writers.pop(row.run_id).close()
