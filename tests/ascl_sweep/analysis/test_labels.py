"""Display names of config keys and arms."""

import pytest

from ascl_sweep.analysis import labels


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"method.name": "moco", "method.relabel": "none"}, "MoCo"),
        ({"method.name": "moco", "method.relabel": "ascl"}, "ASCL"),
        ({"method.name": "byol", "method.relabel": "ascl"}, "BYOL + ASCL"),
        ({"method.name": "byol", "method.symmetric": True}, "BYOL (symmetric)"),
        ({"method.name": "moco", "method.symmetric": False}, "MoCo"),
        ({"method.name": "mine"}, "mine"),
    ],
)
def test_a_system_is_called_as_the_paper_calls_it(config: dict[str, object], name: str) -> None:
    assert labels.system(config) == name


def test_an_arm_label_names_its_system_once_and_then_its_values() -> None:
    config = {"method.name": "moco", "method.relabel": "ascl", "method.target_temperature": 0.05}
    assert labels.system_arm(config, list(config)) == "ASCL, τ' = 0.05"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0625684, "0.0626"), (0.05, "0.05"), (0.0005, "0.0005"), (0.9995, "0.9995"),
     (0.999512, "0.999512"), (0.9512345, "0.9512"), (12345.678, "12346"), (200, "200"),
     (True, "True"), (1.5e-7, "1.5e-07"), (float("nan"), "nan"),
     (-0.0625684, "-0.0626"), ("weak", "weak")],
)  # fmt: skip
def test_sampled_values_have_three_significant_digits(value: object, shown: str) -> None:
    assert labels.short_value(value) == shown
