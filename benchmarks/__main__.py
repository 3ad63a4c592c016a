"""Run the named benchmarks, by default all, and print their results as a Markdown table."""

import importlib
import platform
import sys

import torch

# knn reports how much the process's peak memory grows: run it before benchmarks with larger peaks.
NAMES = (
    "ema",
    "batch_norm",
    "views",
    "knn",
    "kmeans",
    "imagenet",
    "store",
    "report",
    "step",
    "busy",
    "sweep",
)


def main() -> None:
    names = sys.argv[1:] or NAMES
    unknown = set(names) - set(NAMES)
    if unknown:
        known = ", ".join(NAMES)
        sys.exit(f"no benchmark named {', '.join(sorted(unknown))}. Choose from {known}.")
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, "
        f"{platform.machine()}, Python {platform.python_version()}; medians\n"
    )
    print("| benchmark | ours | peer | ratio | goal | note |")
    print("|---|---|---|---|---|---|", flush=True)
    for name in names:
        for r in importlib.import_module(f"benchmarks.{name}").run():
            times = f"{1000 * r.ours:.3g} ms | {1000 * r.peer:.3g} ms"
            print(f"| {r.what} | {times} | {r.value:.3g} | {r.goal} | {r.note} |", flush=True)


if __name__ == "__main__":
    main()
