"""Run the benchmarks named on the command line, or all, and print a Markdown table."""

import importlib
import platform
import sys

import torch

NAMES = (
    "ema",
    "views",
    "knn",
    "kmeans",
    "imagenet",
    "ledger",
    "report",
    "step",
    "sweep",
)  # kNN's memory is a peak: before anything larger ran


def main() -> None:
    wanted = sys.argv[1:] or NAMES
    unknown = set(wanted) - set(NAMES)
    if unknown:
        sys.exit(f"no benchmark named {', '.join(sorted(unknown))}; there are: {', '.join(NAMES)}")
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, "
        f"{platform.machine()}, Python {platform.python_version()}; medians, in turns\n"
    )
    print("| what | ours | peer | ratio | goal | |\n|---|---|---|---|---|---|", flush=True)
    for name in wanted:
        for r in importlib.import_module(f"benchmarks.{name}").run():
            times = f"{1000 * r.ours:.3g} ms | {1000 * r.peer:.3g} ms"
            print(f"| {r.what} | {times} | {r.value:.3g} | {r.goal} | {r.note} |", flush=True)


if __name__ == "__main__":
    main()
