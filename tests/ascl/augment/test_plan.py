"""What a plan promises: contiguous parts for each operation, and every plane of every view once."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ascl.augment.plan import plan_views
from ascl.augment.views import ViewSpec, draw_view
from tests.ascl.augment.test_views import gen


@given(
    kinds=st.lists(st.sampled_from(["weak", "strong", "stronger"]), min_size=1, max_size=4),
    count=st.integers(1, 40),
    seed=st.integers(0, 999),
)
def test_rows_are_sorted_by_operation_and_collected_in_the_order_of_the_batch(
    kinds: list[str], count: int, seed: int
) -> None:
    specs = [ViewSpec(kind, 32) for kind in kinds]
    draws = [draw_view(spec, count, gen(seed + i)) for i, spec in enumerate(specs)]
    pictures = np.random.default_rng(seed).permutation(100)[:count]
    plan = plan_views(draws, specs, pictures, None)
    assert plan.rows == count * len(kinds)
    # Follow each row of the buffer to the view that it becomes.
    strong = [i for i, kind in enumerate(kinds) if kind == "strong"]
    planes = np.arange(3 * plan.rows) if plan.planes is None else plan.planes.numpy()
    gray, blurred = plan.gray.numpy(), plan.blurred.numpy().reshape(-1, 3)
    turned = sum(kind == "stronger" for kind in kinds) * count
    source = plan.source.numpy()
    for i, (view, sample) in enumerate(np.ndindex(len(kinds), count)):
        draw, own = draws[view], planes[3 * i : 3 * i + 3]
        after_blur = own[0] >= 3 * plan.rows + len(gray)
        assert after_blur == (view in strong and draw.sigma[sample] > 0)
        if after_blur:
            own = blurred[(own[0] - 3 * plan.rows - len(gray)) // 3]
        is_gray = own[0] >= 3 * plan.rows
        assert is_gray == (view in strong and draw.gray[sample])
        if is_gray:
            assert (own == own[0]).all()
            row = gray[own[0] - 3 * plan.rows]
        else:
            assert (own == own[0] + np.arange(3)).all() and own[0] % 3 == 0
            row = own[0] // 3
        assert source[row] == pictures[sample]
        before_hue = draw.order[sample].tolist().index(3)
        if view in strong and draw.jitter[sample]:
            assert [row >= start for start in plan.starts] == [before_hue > j for j in range(3)]
        else:
            assert row >= len(plan.shifts)
        assert (row >= plan.rows - turned) == (kinds[view] == "stronger")


def test_weak_views_need_no_last_step() -> None:
    specs = [ViewSpec("weak", 32)] * 2
    draws = [draw_view(spec, 5, gen(i)) for i, spec in enumerate(specs)]
    plan = plan_views(draws, specs, np.arange(5), (32, 32))
    assert plan.planes is None and plan.turns is None
    assert not len(plan.shifts) and not len(plan.gray) and not len(plan.blurred)
