"""A small ablation from Python: plan, run, and look at the table. Seconds on a laptop.

    python examples/python_api.py [STORE]

Repeat it at any time: finished runs are skipped.
"""

import sys
from pathlib import Path

import ascl_sweep

SWEEP = Path(__file__).parent / "sweeps" / "moco_vs_ascl.yaml"


def main(store: str) -> None:
    sweep = ascl_sweep.load_sweep(SWEEP)
    plan = ascl_sweep.plan([sweep], store)
    print(f"{len(plan.runs)} runs, {plan.epochs} epochs to train")

    # `executor="local"` trains in this process; leave it out to train on Ray, in parallel.
    end = ascl_sweep.run([sweep], store, executor="local")
    print(f"ended: {end.value}")

    report = ascl_sweep.build_report(store)  # in a notebook, this alone shows the tables
    print(report.to_pandas()[["arm", "n", "mean", "sd"]].to_string(index=False))

    for run in ascl_sweep.open_store(store).runs().values():
        print(run.run_id, run.state, run.knn_last_top1)


if __name__ == "__main__":
    main(*sys.argv[1:] or ["results"])
