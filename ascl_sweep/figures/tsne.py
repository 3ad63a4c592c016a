"""Runs' features side by side: the file that `ascl-sweep embed` writes, and its t-SNE picture."""

import io
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ascl_sweep.figures.panels import Figure, Panel, Series
from ascl_sweep.figures.shown import spread
from ascl_sweep.store import Store

FORMAT = 1
POINTS = 2000  # in all; more take minutes and cover each other
CLASSES = 10  # more cannot be told apart
PERPLEXITY = 30  # how many neighbours a point heeds; the usual value
SEED = 0


@dataclass(frozen=True, eq=False)
class Embedded:
    """A run's features of some images. Shapes: N = images, D = feature."""

    run_id: str
    label: str
    """What the run is, for people."""
    split: str
    """Which images: test, holdout or train."""
    features: NDArray[np.float32]
    """(N, D)."""
    labels: NDArray[np.int64]
    """(N,)."""


def write(embedded: Embedded, path: Path) -> None:
    """Write features as an `.npz`, which numpy reads without us: features, labels, run_id, …"""
    content = io.BytesIO()
    np.savez(
        content,
        format=np.int64(FORMAT),
        run_id=np.str_(embedded.run_id),
        label=np.str_(embedded.label),
        split=np.str_(embedded.split),
        features=embedded.features,
        labels=embedded.labels,
    )
    Store(path.absolute().parent).write(path.name, content.getvalue())


def read(path: Path) -> Embedded:
    """Read what `write` wrote; damage and foreign files get a sentence."""
    try:
        with np.load(path, allow_pickle=False) as found:
            format_, features, labels = int(found["format"]), found["features"], found["labels"]
            run_id, label, split = (str(found[key]) for key in ("run_id", "label", "split"))
    except (ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path} is damaged or no file of features; write it with `ascl-sweep embed RUN`"
        ) from error
    if format_ != FORMAT:
        raise ValueError(
            f"{path} has format {format_}, this version reads {FORMAT}; upgrade ascl-sweep"
        )
    return Embedded(run_id, label, split, features, labels)


def tsne_figure(runs: Sequence[Embedded]) -> Figure:
    """Each run's features in two dimensions, coloured by class; equal runs give equal pictures."""
    titles = Counter(run.label for run in runs)
    panels, counts, shown = [], [], 0
    for run in runs:
        chosen = balanced(run.labels)
        places = _in_two_dimensions(run.features[chosen], run)
        labels = run.labels[chosen]
        series = []
        for each in np.unique(labels):
            x, y = places[labels == each].T.tolist()
            series.append(Series(f"class {each}", tuple(x), tuple(y), kind="points"))
        title = f"{run.label} ({run.run_id})" if titles[run.label] > 1 else run.label
        panels.append(Panel(title, series=tuple(series)))
        counts.append(len(chosen))
        shown = max(shown, len(series))
    classes = max(len(np.unique(run.labels[run.labels >= 0])) for run in runs)
    some = f" of the first {shown} of {classes} classes" if shown < classes else ""
    images = " and ".join(
        dict.fromkeys(f"{n} {run.split}" for n, run in zip(counts, runs, strict=True))
    )
    return Figure(
        "-".join(("tsne", *(run.run_id for run in runs))),
        "Features by t-SNE",
        f"t-SNE of the encoder's features, scaled to length 1, of {images} images{some}, equally "
        f"many of each class; colours and marks are classes. {', '.join(p.title for p in panels)}. "
        f"Perplexity {PERPLEXITY} at most, seed {SEED}; distances between clusters mean little.",
        tuple(panels),
    )


def balanced(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Places of at most `POINTS` labelled images, equally many of each of the first classes."""
    classes = np.unique(labels[labels >= 0])[:CLASSES]
    each = [np.flatnonzero(labels == one) for one in classes]
    most = min([POINTS // max(1, len(classes)), *map(len, each)])
    return np.array(sorted(i for part in each for i in spread(part.tolist(), most)), np.int64)


def _in_two_dimensions(features: NDArray[np.float32], run: Embedded) -> NDArray[np.float32]:
    if not np.isfinite(features).all():
        raise ValueError(f"the features of {run.run_id} are not all numbers: has the run diverged?")
    if len(features) < 4:
        raise ValueError(
            f"t-SNE needs a few labelled images of each class, got {len(features)} in all of "
            f"{run.run_id}; embed a larger split"
        )
    from sklearn.manifold import TSNE  # takes two seconds to load
    from threadpoolctl import threadpool_limits

    norms = np.linalg.norm(features, axis=1, keepdims=True)
    features = features / np.maximum(norms, np.finfo(np.float32).tiny)  # as kNN compares them
    perplexity = min(PERPLEXITY, (len(features) - 1) / 3)
    found = TSNE(perplexity=perplexity, init="pca", random_state=SEED, n_jobs=1)
    with threadpool_limits(1):  # threads gain little here, and on a busy machine lose fourfold
        placed: NDArray[np.float32] = found.fit_transform(features)
    return placed
