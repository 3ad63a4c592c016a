"""Laws of the list of datasets: every file is found, by name, without loading torch."""

import subprocess
import sys
from pathlib import Path

import pytest

import ascl.data
from ascl.data.base import DATASETS, dataset_label, dataset_spec
from ascl.data.subset import load_data
from ascl.errors import DataError


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(
        DataError, match=r"no dataset named 'cifar' .*; there are: cifar10, cifar100"
    ):
        dataset_spec("cifar")


def test_every_spec_is_found_under_its_name() -> None:
    assert all(dataset_spec(name).name == name for name in DATASETS)
    assert [name for name, spec in DATASETS.items() if spec.streams] == ["imagenet"]


def test_the_mean_and_deviation_of_shapes_are_those_of_its_pixels() -> None:
    pixels = load_data("shapes", "nowhere").train.images.double() / 255
    spec = dataset_spec("shapes")
    assert pixels.mean((0, 2, 3)).tolist() == pytest.approx(spec.mean, abs=1e-4)
    assert pixels.std((0, 2, 3)).tolist() == pytest.approx(spec.std, abs=1e-4)


NEW = """
import torch
from ascl.data.base import DatasetSpec, Images, Split

LABELS = {"dots": "Dots"}


def _open(spec, root, split):
    labels = torch.arange(20) % 2
    images = torch.zeros(20, 3, 32, 32, dtype=torch.uint8)
    return Split(labels, lambda places: Images(images[places], labels[places]))


SPECS = [
    DatasetSpec("dots", 2, 32, 32, (0.5, 0.5, 0.5), (0.2, 0.2, 0.2), _open, lambda spec, root: None)
]
"""


def test_one_file_adds_a_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dots.py").write_text(NEW)
    monkeypatch.setattr(ascl.data, "__path__", [*ascl.data.__path__, str(tmp_path)])
    assert "dots" in list(DATASETS) and dataset_label("dots") == "Dots"
    assert len(load_data("dots", "nowhere", holdout=0.5).test) == 10
    del DATASETS["dots"]


def test_labels_and_names_load_no_torch() -> None:
    code = (
        "import sys, ascl.keys; from ascl.data.base import DATASETS, dataset_label\n"
        "assert [dataset_label(n) for n in DATASETS][:2] == ['CIFAR-10', 'CIFAR-100']\n"
        "assert dataset_label('gone') == 'gone'\n"
        "assert not {'torch', 'numpy', 'torchvision'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
