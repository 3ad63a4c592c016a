"""Factorial effects: known effects are recovered, and null tables rarely show one."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascl_sweep.analysis.arms import group_into_arms
from ascl_sweep.analysis.comparison import DATASET, Arm
from ascl_sweep.analysis.factorial import Effect, Factorial, cross, factorials
from ascl_sweep.contracts import RunRow, RunState, Scalar
from ascl_sweep.spec.metrics import find_metric
from ascl_sweep.spec.sweep import load_sweep
from tests.paths import ROOT

PROBE, LOSS = find_metric("probe_top1"), find_metric("loss")
RELABEL, KEY, EPOCHS, K = "method.relabel", "augment.key", "epochs", "method.num_neighbours"
BASE: Mapping[str, Scalar] = {RELABEL: "none", KEY: "strong", EPOCHS: 200, K: 1}
CUBE: Mapping[str, Sequence[Scalar]] = {
    RELABEL: ("none", "ascl"),
    KEY: ("strong", "weak"),
    EPOCHS: (200, 800),
}


def an_arm(values: Mapping[str, Scalar], scores: Sequence[float | None], **more: object) -> Arm:
    return Arm(
        label=", ".join(map(str, values.values())),
        values=values,
        config={"method.name": "moco", **values},
        idle=(),
        scores={seed: score for seed, score in enumerate(scores) if score is not None},
        planned=len(scores),
        mean=None,
        sd=None,
        interval=None,
        states={},
        epochs=0,
        device_hours=0,
        run_ids=(),
        **more,  # type: ignore[arg-type]
    )


def a_grid(levels: Mapping[str, Sequence[Scalar]], scores: np.ndarray) -> list[Arm]:
    """Arms of a grid; scores has an axis for each factor and one for the seeds."""
    cells = [dict(zip(levels, values, strict=True)) for values in product(*levels.values())]
    rows = scores.reshape(len(cells), -1)
    return [an_arm(cell, row.tolist()) for cell, row in zip(cells, rows, strict=True)]


def the_factorial(arms: Sequence[Arm]) -> Factorial:
    (found,) = factorials(arms, BASE, PROBE, 0.5)
    return found


def means(found: Factorial) -> dict[str, float]:
    return {e.name: e.inference.estimate.mean for e in found.effects if e.inference}


def kinds(found: Factorial, kind: str) -> list[Effect]:
    return [effect for effect in found.effects if effect.kind == kind]


# ---------------------------------------------------------------- the grid


def test_a_hand_worked_two_by_two_table() -> None:
    # One seed: MoCo 10 and 14, ASCL 11 and 19. Main effects: ((11 − 10) + (19 − 14)) / 2 = 3 and
    # ((14 − 10) + (19 − 11)) / 2 = 6; interaction: (19 − 14) − (11 − 10) = 4.
    levels = {RELABEL: ("none", "ascl"), EPOCHS: (200, 800)}
    found = the_factorial(a_grid(levels, np.array([[[10.0], [14.0]], [[11.0], [19.0]]])))
    assert means(found) == pytest.approx(
        {
            "ASCL vs MoCo": 3,
            "epochs = 800 vs 200": 6,
            "(ASCL vs MoCo) × (epochs = 800 vs 200)": 4,
        }
    )


def test_a_cube_has_three_main_effects_and_three_interactions() -> None:
    found = the_factorial(a_grid(CUBE, np.zeros((2, 2, 2, 3))))
    assert [len(kinds(found, kind)) for kind in ("main", "interaction")] == [3, 3]
    assert [factor.key for factor in found.factors] == [RELABEL, KEY, EPOCHS]
    assert all(e.inference and e.inference.family == 3 for e in found.effects)
    assert found.excluded == ()


def test_moco_is_outside_the_grid_over_k() -> None:
    levels = {RELABEL: ("hard", "ahcl", "ascl"), K: (1, 2, 5, 10)}
    arms = [an_arm({RELABEL: "none"}, [1.0]), *a_grid(levels, np.zeros((3, 4, 1)))]
    found = the_factorial(arms)
    assert found.excluded == ("none",)
    assert [factor.levels for factor in found.factors] == [
        ("Hard", "AHCL", "ASCL"),
        ("K = 1", "K = 2", "K = 5", "K = 10"),
    ]
    assert len(kinds(found, "main")) == 2 + 3
    assert len(kinds(found, "interaction")) == 2 * 3


def test_the_base_level_is_first_also_if_it_is_listed_last() -> None:
    found = the_factorial(a_grid({**CUBE, EPOCHS: (800, 200)}, np.zeros((2, 2, 2, 1))))
    assert found.factors[2].levels == ("epochs = 200", "epochs = 800")


def test_a_key_that_follows_from_the_others_is_no_factor() -> None:
    arms = [
        an_arm({**arm.values, "optim.lr": 0.03 if arm.values[EPOCHS] == 200 else 0.06}, [1.0])
        for arm in a_grid(CUBE, np.zeros((2, 2, 2, 1)))
    ]
    assert len(the_factorial(arms).factors) == 3


@pytest.mark.parametrize(
    "values",
    [
        [{EPOCHS: epochs} for epochs in (100, 200, 400)],
        [{EPOCHS: 200, K: 1}, {EPOCHS: 400, K: 1}, {EPOCHS: 200, K: 2}],
        [{EPOCHS: 200 + i, K: 1 + i} for i in range(5)],
        [],
    ],
    ids=["one key", "one at a time", "linked keys", "no arms"],
)
def test_tables_without_a_grid_have_no_effects(values: list[dict[str, Scalar]]) -> None:
    assert factorials([an_arm(each, [1.0]) for each in values], BASE, PROBE, 0.5) == ()


@given(
    sizes=st.lists(st.integers(2, 4), min_size=2, max_size=3),
    holes=st.sets(st.integers(0, 63), max_size=6),
)
def test_the_crossed_part_is_a_full_grid_and_a_full_grid_stays_whole(
    sizes: list[int], holes: set[int]
) -> None:
    everything = list(product(*map(range, sizes)))
    arm = an_arm({}, [])
    cells = {cell: arm for i, cell in enumerate(everything) if i not in holes}
    found = list(cross(dict(cells)))
    assert set(found) <= set(cells)
    columns = [list(dict.fromkeys(column)) for column in zip(*found, strict=True)]
    assert sorted(found) == sorted(product(*columns) if found else [])
    if len(cells) == len(everything):
        assert found == everything


@pytest.mark.parametrize(
    ("sweep", "shape", "excluded"),
    [("augmentation", [2, 2, 2], 0), ("neighbours", [3, 4], 1), ("byol", [2, 2], 0)],
)
def test_the_papers_sweeps_have_their_factors(sweep: str, shape: list[int], excluded: int) -> None:
    spec = load_sweep(ROOT / f"search_spaces/{sweep}.yaml")
    configs = [spec.config(cell.changes, seed=0) for cell in spec.distinct_cells()]
    rows = [
        RunRow(c.identity(), (sweep,), c.flat_values(), "final", "full", idle=c.idle_keys())
        for c in configs
    ]
    groups = group_into_arms(rows, spec.axes)
    arms = [replace(an_arm(group.values, []), config=group.config) for group in groups]
    found = factorials(arms, BASE, PROBE, 0.5)
    assert [part.dataset for part in found] == ["cifar10", "cifar100"]
    for part in found:
        assert [len(factor.levels) for factor in part.factors] == shape
        assert len(part.excluded) == excluded


def test_each_dataset_has_its_own_effects_and_shares_one_family() -> None:
    levels = {DATASET: ("cifar10", "cifar100"), **CUBE}
    found = factorials(a_grid(levels, np.zeros((2, 2, 2, 2, 3))), BASE, PROBE, 0.5)
    assert [part.dataset for part in found] == ["cifar10", "cifar100"]
    assert {e.inference.family for part in found for e in part.effects if e.inference} == {6}


def test_reference_arms_are_excluded() -> None:
    arms = a_grid({"method.name": ("supervised", "moco"), EPOCHS: (1, 2)}, np.zeros((2, 2, 3)))
    assert factorials(arms, BASE, PROBE, 0.5) == ()


# ---------------------------------------------------------------- seeds


def test_only_seeds_complete_in_all_cells_count() -> None:
    scores = np.random.default_rng(0).normal(80, 1, (2, 2, 2, 4)).astype(object)
    scores[0, 0, 0, 1] = None
    found = the_factorial(a_grid(CUBE, scores))
    assert {e.inference.estimate.n for e in found.effects if e.inference} == {3}


def test_planned_effects_count_in_the_family_before_their_runs_are_finished() -> None:
    arms = a_grid(CUBE, np.full((2, 2, 2, 3), None))
    assert all(effect.inference is None for effect in the_factorial(arms).effects)
    assert len(the_factorial(arms).effects) == 6


def test_a_level_that_lost_a_seed_is_not_better() -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, (2, 2, 2, 5))
    noise[1] += 5
    arms = a_grid(CUBE, noise)
    better = the_factorial(arms).effects[0].inference
    assert better is not None and better.verdict == "better"
    lost = replace(arms[-1], unscored={5: RunState.DIVERGED})
    again = the_factorial([*arms[:-1], lost]).effects[0].inference
    assert again is not None and again.verdict == "undecided"


@pytest.mark.parametrize("state", ["planned", "running", "lost", "stopped"])
def test_no_effect_is_decided_before_the_planned_seeds_have_ended(state: str) -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, (2, 2, 2, 5))
    noise[1] += 5
    arms, planned = a_grid(CUBE, noise), range(5)
    (whole,) = factorials(arms, BASE, PROBE, 0.5, planned)
    assert whole.effects[0].inference and whole.effects[0].inference.verdict == "better"
    # One run of one cell is missing; the contrasts have four seeds.
    scores = {seed: score for seed, score in arms[0].scores.items() if seed < 4}
    arms[0] = replace(arms[0], scores=scores, unscored={4: RunState(state)})
    (found,) = factorials(arms, BASE, PROBE, 0.5, planned)
    assert {e.inference.verdict for e in found.effects if e.inference} == {"undecided"}
    assert found.effects[0].inference and found.effects[0].inference.seeds_needed == 1
    arms[0] = replace(arms[0], unscored={4: RunState.FAILED})
    (found,) = factorials(arms, BASE, PROBE, 0.5, planned)
    assert found.effects[1].inference and not found.effects[1].inference.waiting


def test_the_direction_of_a_verdict_follows_the_metric() -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, (2, 2, 2, 5))
    noise[1] -= 5
    (found,) = factorials(a_grid(CUBE, noise), BASE, LOSS, 0.5)
    assert found.effects[0].inference is not None
    assert found.effects[0].inference.verdict == "better"


# ---------------------------------------------------------------- estimates

tenths = st.integers(-100, 100).map(lambda tenth: tenth / 10)


@given(
    a=st.lists(tenths, min_size=2, max_size=3),
    b=st.lists(tenths, min_size=2, max_size=4),
    seeds=st.lists(tenths, min_size=1, max_size=4),
)
def test_additive_tables_give_their_effects_without_interaction_whatever_the_seeds(
    a: list[float], b: list[float], seeds: list[float]
) -> None:
    levels = {EPOCHS: [200 + i for i in range(len(a))], K: [1 + i for i in range(len(b))]}
    scores = np.array(a)[:, None, None] + np.array(b)[None, :, None] + np.array(seeds)
    found = the_factorial(a_grid(levels, scores))
    expected = [x - a[0] for x in a[1:]] + [x - b[0] for x in b[1:]]
    got = [e.inference.estimate.mean for e in kinds(found, "main") if e.inference]
    assert got == pytest.approx(expected, abs=1e-7)
    for effect in found.effects:
        assert effect.inference is not None
        assert effect.inference.verdict in (None, "undecided"), "no variance proves nothing"
        if effect.kind == "interaction":
            assert effect.inference.estimate.mean == pytest.approx(0, abs=1e-7)


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1))
def test_contrasts_equal_an_independent_least_squares_fit(seed: int) -> None:
    """Main effects of a full grid are those of the linear model with both factors and seeds."""
    scores = np.random.default_rng(seed).normal(80, 2, (3, 4, 5))
    found = means(
        the_factorial(a_grid({RELABEL: ("hard", "ahcl", "ascl"), K: (1, 2, 5, 10)}, scores))
    )
    cells = list(product(range(3), range(4), range(5)))
    design = np.array(
        [
            [i == 1, i == 2, *(j == l for l in (1, 2, 3)), *(s == r for r in range(5))]  # noqa: E741
            for i, j, s in cells
        ],
        float,
    )
    fit = np.linalg.lstsq(design, scores.ravel(), rcond=None)[0]
    names = ["AHCL vs Hard", "ASCL vs Hard", *(f"K = {k} vs 1" for k in (2, 5, 10))]
    assert [found[name] for name in names] == pytest.approx(fit[:5])


def test_a_factor_of_ten_levels_does_not_borrow_the_precision_of_one_of_two() -> None:
    """With noise of SD 1 the squared standard error is about 2 / cells per level / seeds."""
    generator = np.random.default_rng(1)
    levels = {RELABEL: ("none", "ascl"), K: tuple(range(1, 11))}
    errors: dict[str, list[float]] = {"ASCL vs MoCo": [], "K = 2 vs 1": []}
    for _ in range(50):
        found = the_factorial(a_grid(levels, generator.normal(0, 1, (2, 10, 3))))
        for effect in found.effects:
            if effect.name in errors and effect.inference and effect.inference.estimate.se:
                errors[effect.name].append(effect.inference.estimate.se**2)
    for name, cells in (("ASCL vs MoCo", 10), ("K = 2 vs 1", 2)):
        expected = 2 / cells / 3
        # The variance is at least the contrast's own, so that its mean is above the true one.
        assert 0.9 < np.mean(errors[name]) / expected < 1.8


def test_a_known_main_effect_is_recovered() -> None:
    generator = np.random.default_rng(0)
    covered, found_better, false = 0, 0, 0
    for _ in range(200):
        scores = generator.normal(0, 1, (2, 2, 2, 3)) + generator.normal(0, 2, 3)
        scores[1] += 2  # two SD
        effect, *others = the_factorial(a_grid(CUBE, scores)).effects
        assert effect.inference is not None and effect.inference.interval is not None
        covered += 2 in effect.inference.interval
        found_better += effect.inference.verdict == "better"
        false += any(e.inference and e.inference.verdict == "better" for e in others[:2])
    assert covered >= 190
    assert found_better > 130, "three seeds decide an effect of two SD"
    assert false < 15


def test_null_tables_rarely_show_an_effect() -> None:
    """Family-wise error near 5% for main effects and for interactions, with three seeds."""
    generator = np.random.default_rng(0)
    tables, errors = 600, {"main": 0, "interaction": 0}
    for _ in range(tables):
        found = the_factorial(a_grid(CUBE, generator.normal(0, 1, (2, 2, 2, 3))))
        for kind in errors:
            errors[kind] += any(
                e.inference and e.inference.verdict in ("better", "worse")
                for e in kinds(found, kind)
            )
    for count in errors.values():
        assert 0.01 * tables < count < 0.075 * tables
