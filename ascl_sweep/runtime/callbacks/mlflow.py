"""MLflow logger: one experiment per sweep, at MLFLOW_TRACKING_URI or MLflow's default."""

from collections.abc import Mapping

from ascl_sweep.contracts import RunRow, RunState
from ascl_sweep.runtime.callbacks.logger import FAILED_STATES, milliseconds

BATCH = 100  # maximum number of parameters per call


class Logger:
    package = "mlflow"
    needs_local_store = False

    def __init__(self, store: str) -> None:
        from mlflow import MlflowClient

        self._client = MlflowClient()
        self._runs: dict[str, str] = {}  # our run id → MLflow's

    def on_run_start(self, sweep: str, row: RunRow) -> None:
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

    def on_epoch(self, run_id: str, epoch: int, metrics: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = milliseconds()
        values = [Metric(name, value, now, epoch) for name, value in metrics.items()]
        self._client.log_batch(self._runs[run_id], metrics=values)

    def on_run_end(self, row: RunRow) -> None:
        status = "FAILED" if row.state in FAILED_STATES else "FINISHED"
        self._client.set_terminated(
            self._runs.pop(row.run_id), "KILLED" if row.state is RunState.PLANNED else status
        )
