"""What the paper claims in words: who should beat whom, all else alike.

`report/judged.py` holds each claim against our runs, as `paper.py` has the numbers for tables.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from ascl_sweep.paper import SYSTEMS, Where

Outcome = Literal["holds", "does not hold", "undecided", "not run"]
Score = Literal["probe_top1", "knn_top1", "early_knn"]


@dataclass(frozen=True)
class Contest:
    """Runs with the winner's values should beat those with the loser's, all else alike."""

    winner: Where
    loser: Where

    @property
    def keys(self) -> Collection[str]:
        return self.winner.keys() | self.loser.keys()


@dataclass(frozen=True)
class Claim:
    """One thing that the paper says."""

    text: str
    source: str
    """Label of its table or figure, or section."""
    sweeps: tuple[str, ...]
    """Those whose runs it is held against."""
    contests: tuple[Contest, ...] = ()
    score: Score = "probe_top1"
    kind: Literal["better", "no worse", "narrows"] = "better"
    """`narrows`: the winner gains on the loser as `batch_size` grows."""
    settled: tuple[Outcome, str] | None = None
    """Of what no run is needed for, or none can decide: the outcome and why."""


def _against(winner: str, *losers: str, **values: str) -> tuple[Contest, ...]:
    """One system against each of others; further values are those of both sides."""
    both = {key.replace("__", "."): value for key, value in values.items()}
    return tuple(
        Contest({**SYSTEMS[winner], **both}, {**SYSTEMS[loser], **both}) for loser in losers
    )


_WEAK = tuple(
    Contest({**SYSTEMS[name], "augment.key": "weak"}, {**SYSTEMS[name], "augment.key": "strong"})
    for name in ("MoCo", "ASCL")
)
_TAU = "method.target_temperature"

CLAIMS = (
    Claim(
        "ASCL is better than SimCLR, BYOL, SimSiam, MoCo and ReSSL on every small dataset",
        "tab:small",
        ("small_datasets",),
        _against("ASCL", "SimCLR", "BYOL", "SimSiam", "MoCo", "ReSSL"),
    ),
    Claim(
        "A weak key view is better than a strong one, for MoCo and for ASCL, in short and long "
        "training",
        "tab:augmentation",
        ("augmentation",),
        _WEAK,
    ),
    Claim(
        "ASCL is better than MoCo with either key view, in short and long training",
        "tab:augmentation",
        ("augmentation",),
        _against("ASCL", "MoCo"),
    ),
    Claim(
        "Hard, AHCL and ASCL end above MoCo in online kNN",
        "fig:knnacc",
        ("learning_speed",),
        (*_against("Hard", "MoCo"), *_against("AHCL", "MoCo"), *_against("ASCL", "MoCo")),
        score="knn_top1",
    ),
    Claim(
        "Hard learns more slowly than MoCo at first",
        "fig:knnacc",
        ("learning_speed",),
        _against("MoCo", "Hard"),
        score="early_knn",
    ),
    Claim(
        "AHCL and ASCL keep MoCo's speed at first",
        "fig:knnacc",
        ("learning_speed",),
        (*_against("AHCL", "MoCo"), *_against("ASCL", "MoCo")),
        score="early_knn",
        kind="no worse",
    ),
    Claim(
        "ASCL is better than Hard and AHCL at every K",
        "tab:nns",
        ("neighbours",),
        _against("ASCL", "Hard", "AHCL"),
    ),
    Claim(
        "ASCL is better than MoCo at every K",
        "tab:nns",
        ("neighbours",),
        _against("ASCL", "MoCo"),
    ),
    Claim("AHCL is always better than Hard", "tab:nns", ("neighbours",), _against("AHCL", "Hard")),
    Claim(
        "With K = 10 Hard and AHCL fall below MoCo",
        "tab:nns",
        ("neighbours",),
        tuple(
            Contest(SYSTEMS["MoCo"], {**SYSTEMS[name], "method.num_neighbours": 10})
            for name in ("Hard", "AHCL")
        ),
    ),
    Claim(
        "τ' = 0.05 is better than lower and higher ones",
        "tab:tempscan",
        ("tau_prime",),
        tuple(
            Contest({**SYSTEMS["ASCL"], _TAU: 0.05}, {**SYSTEMS["ASCL"], _TAU: other})
            for other in (0.01, 0.02, 0.08, 0.1)
        ),
    ),
    Claim(
        "ASCL with any of these τ' is better than MoCo",
        "tab:tempscan",
        ("neighbours", "tau_prime"),
        tuple(
            Contest({**SYSTEMS["ASCL"], _TAU: value}, SYSTEMS["MoCo"])
            for value in (0.01, 0.02, 0.05, 0.08, 0.1)
        ),
    ),
    Claim(
        "As τ' goes to 0, ASCL becomes Hard with K = 1",
        "tab:tempscan",
        ("tau_prime",),
        settled=("holds", "follows from eq. 7 to 11; a test of relabel.py holds it"),
    ),
    Claim(
        "A high τ' acts like label smoothing",
        "tab:tempscan",
        ("tau_prime",),
        settled=(
            "does not hold",
            "as the relation becomes uniform its confidence c becomes 0 (eq. 8), so that ASCL "
            "becomes MoCo; a test of relabel.py holds it",
        ),
    ),
    Claim(
        "ASCL improves BYOL on CIFAR-10",
        "tab:byol",
        ("byol",),
        _against("BYOL + ASCL", "BYOL", data__name="cifar10"),
    ),
    Claim(
        "ASCL harms BYOL on CIFAR-100",
        "tab:byol",
        ("byol",),
        _against("BYOL", "BYOL + ASCL", data__name="cifar100"),
    ),
    Claim(
        "With a larger batch BYOL + ASCL gains on BYOL on CIFAR-100",
        "tab:byol",
        ("byol",),
        _against("BYOL + ASCL", "BYOL", data__name="cifar100"),
        kind="narrows",
    ),
    Claim(
        "ASCL is better than every other self-supervised system on ImageNet-1k",
        "tab:imagenet",
        ("imagenet",),
        _against(
            *("ASCL", "InstDisc", "LocalAgg", "MoCo", "CO2", "PCL", "ReSSL", "SimCLR"),
            *("NNCLR", "CLSA", "SwAV", "SimSiam", "BYOL"),
        ),
    ),
    Claim(
        "Classes have clearer borders in ASCL's features than in MoCo's",
        "fig:tsne",
        ("tsne",),
        settled=("undecided", "a picture of one run of each shows it or not; no number is given"),
    ),
)

SWEEPS = frozenset(name for claim in CLAIMS for name in claim.sweeps)
EARLY_SWEEPS = frozenset(n for claim in CLAIMS if claim.score == "early_knn" for n in claim.sweeps)
