"""EpochMetrics: the metrics that one epoch of training reports. Does not load torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class EpochMetrics:
    """Metrics of one epoch. Accuracies are fractions (0 to 1); None means not measured."""

    epoch: int  # the first epoch is 1
    loss: float
    lr: float  # at the epoch's last step
    knn_top1: float | None = None
    test_top1: float | None = None  # of the method's own classifier, if it has one
    probe_top1: float | None = None  # after the probe's last epoch
    probe_best_top1: float | None = None  # of the probe's best epoch, selected on the scored images
    confidence: float | None = None  # mean c of eq. 8
    effective_neighbours: float | None = None  # perplexity of the label mass on neighbors
    purity: float | None = None  # fraction of that mass on the same class
    neighbour_top1: float | None = None  # fraction of nearest neighbors of the same class
    spread: float | None = None  # 0 if all queries are equal (collapse)
    train_seconds: float = 0.0
    eval_seconds: float = 0.0
    images_per_second: float = 0.0
    peak_memory_gb: float | None = None  # since this call of `train`, maximum over ranks
