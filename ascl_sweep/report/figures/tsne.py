"""Feature files of `ascl-sweep embed`, and their t-SNE figure."""

import io
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ascl_sweep.errors import UsageError
from ascl_sweep.report.figures.model import Figure, Panel, Series
from ascl_sweep.report.figures.selection import spread
from ascl_sweep.store.filesystem import StoreFiles

FORMAT = 1
POINTS = 2000  # per run; more take minutes and overlap
CLASSES = 10  # more colors are hard to distinguish
PERPLEXITY = 30  # effective number of neighbors of a point; the usual value
SEED = 0


@dataclass(frozen=True, eq=False)
class Embedded:
    """A run's features of some images. Shapes: N = images, D = feature."""

    run_id: str
    label: str
    """Display name of the run."""
    split: str
    """Split of the images: test, holdout or train."""
    features: NDArray[np.float32]
    """(N, D)."""
    labels: NDArray[np.int64]
    """(N,)."""


def write(embedded: Embedded, path: Path) -> None:
    """Write features as a plain NumPy `.npz` file with features, labels, run_id and more."""
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
    StoreFiles(path.absolute().parent).write(path.name, content.getvalue())


def read(path: Path) -> Embedded:
    """Read a file of `write`; raise UsageError for a damaged or foreign file."""
    try:
        with np.load(path, allow_pickle=False) as found:
            format_, features, labels = int(found["format"]), found["features"], found["labels"]
            run_id, label, split = (str(found[key]) for key in ("run_id", "label", "split"))
    except (ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile) as error:
        raise UsageError(
            f"{path} is damaged or not a feature file; create it with `ascl-sweep embed RUN`"
        ) from error
    if format_ != FORMAT:
        raise UsageError(
            f"{path} has format {format_}, this version reads {FORMAT}; upgrade ascl-sweep"
        )
    return Embedded(run_id, label, split, features, labels)


def tsne_figure(runs: Sequence[Embedded]) -> Figure:
    """Build the t-SNE figure: one panel per run, colored by class. Deterministic."""
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
        f"t-SNE of the encoder's L2-normalized features of {images} images{some}, the same number "
        f"per class; colors and markers show classes. {', '.join(p.title for p in panels)}. "
        f"Perplexity at most {PERPLEXITY}, seed {SEED}; distances between clusters mean little.",
        tuple(panels),
    )


def balanced(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Select at most `POINTS` labeled images, the same number of each of the first classes."""
    classes = np.unique(labels[labels >= 0])[:CLASSES]
    each = [np.flatnonzero(labels == one) for one in classes]
    most = min([POINTS // max(1, len(classes)), *map(len, each)])
    return np.array(sorted(i for part in each for i in spread(part.tolist(), most)), np.int64)


def _in_two_dimensions(features: NDArray[np.float32], run: Embedded) -> NDArray[np.float32]:
    if not np.isfinite(features).all():
        raise UsageError(f"the features of {run.run_id} are not finite; the run may have diverged")
    if len(features) < 4:
        raise UsageError(
            f"t-SNE needs at least 4 labeled images, got {len(features)} of {run.run_id}; embed a "
            "larger split"
        )
    from sklearn.manifold import TSNE  # slow import: two seconds
    from threadpoolctl import threadpool_limits

    norms = np.linalg.norm(features, axis=1, keepdims=True)
    features = features / np.maximum(norms, np.finfo(np.float32).tiny)  # as in kNN
    perplexity = min(PERPLEXITY, (len(features) - 1) / 3)
    found = TSNE(perplexity=perplexity, init="pca", random_state=SEED, n_jobs=1)
    with threadpool_limits(1):  # more threads gain little and slow down a busy machine fourfold
        placed: NDArray[np.float32] = found.fit_transform(features)
    return placed
