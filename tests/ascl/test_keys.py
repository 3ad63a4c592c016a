"""Laws of config keys: labels, effect on results, smoke-test values."""

import subprocess
import sys

import pytest

from ascl.config import RunConfig
from ascl.keys import describe_keys, key_label, keys_outside_arms
from ascl.methods import load_method, method_names, method_smoke
from ascl.sections import keys_of


def test_method_keys_parsed_from_source_equal_those_of_the_class() -> None:
    for name in method_names():
        for field, key in keys_of(load_method(name).config).items():
            stated = describe_keys().get(f"method.{field}")
            assert field == "name" or stated in (None, key) or key.label is None, (name, field)


@pytest.mark.parametrize(
    ("key", "label"),
    [("method.num_neighbours", "K"), ("method.target_temperature", "τ'"), ("optim.lr", "lr")]
    + [("method.name", "method"), ("data.name", "data"), ("optim.momentum", "optim.momentum")],
)
def test_keys_are_displayed_by_their_label(key: str, label: str) -> None:
    assert key_label(key) == label


def test_runs_of_an_arm_differ_only_in_seed_and_keys_without_effect_on_results() -> None:
    assert keys_outside_arms() == {
        *("seed", "preset", "data.root", "runtime.device", "runtime.micro_batches")
    }


def test_smoke_test_settings_are_valid_keys_of_their_method() -> None:
    for name in method_names():
        smoke = method_smoke(name)
        config = RunConfig.of({**smoke, "method": {"name": name, **smoke.get("method", {})}})
        assert config.method.name == name


def test_labels_load_no_torch() -> None:
    code = (
        "import sys; from ascl.keys import key_label; from ascl.methods import method_label\n"
        "assert key_label('method.queue_size') == 'bank' and method_label('moco') == 'MoCo'\n"
        "assert method_label('gone') == 'gone'\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
