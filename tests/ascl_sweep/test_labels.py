"""What people are shown in place of a config's keys."""

import pytest

from ascl_sweep import labels


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


def test_an_arm_says_its_system_once_and_then_its_values() -> None:
    config = {"method.name": "moco", "method.relabel": "ascl", "method.target_temperature": 0.05}
    assert labels.system_arm(config, list(config)) == "ASCL, τ' = 0.05"


def test_an_error_is_one_line_whatever_it_says() -> None:
    assert labels.one_line(ValueError("\n first \n\n last\n")) == "first"
    assert labels.one_line(ValueError("\n first \n\n last\n"), last=True) == "last"
    assert labels.one_line(ValueError(" ")) == "ValueError"
