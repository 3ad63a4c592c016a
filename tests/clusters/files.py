"""The cluster files as text and as trees."""

import re
from typing import Any

import yaml

from tests.paths import ROOT

AWS, GCP, ON_PREM = "cluster.yaml", "clusters/gcp.yaml", "clusters/on_prem.yaml"
RAY_UP = (AWS, GCP, ON_PREM)
KUBERAY, ACCOUNT = "clusters/kuberay.yaml", "clusters/aws-account.yaml"
GCP_ACCOUNT, DOCKERFILE = "clusters/gcp-account.sh", "clusters/Dockerfile"
EVERY = (*RAY_UP, KUBERAY, ACCOUNT, GCP_ACCOUNT, DOCKERFILE)


class _Template(yaml.SafeLoader):
    """CloudFormation's short forms: `!GetAtt A.B` is {"GetAtt": "A.B"}."""


def _short_form(loader: yaml.SafeLoader, name: str, node: yaml.Node) -> dict[str, Any]:
    assert isinstance(node, yaml.ScalarNode), "only short forms of a word are used"
    return {name: loader.construct_scalar(node)}


_Template.add_multi_constructor("!", _short_form)


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def tree(name: str, content: str | None = None) -> Any:
    """What a file says; of KubeRay's, a list of objects."""
    content = text(name) if content is None else content
    if name == KUBERAY:
        return list(yaml.safe_load_all(content))
    if name == ACCOUNT:
        return yaml.load(content, Loader=_Template)
    return yaml.safe_load(content)


def needed(name: str) -> list[str]:
    """The datasets of the sweep that a cluster file names."""
    from ascl_sweep.doctor.checks import datasets_of
    from ascl_sweep.spec.sweep import load_sweep

    [sweep] = set(re.findall(r"ascl-sweep (?:submit|run) \S*?(search_spaces/\S+)", text(name)))
    return [dataset for dataset, _ in datasets_of(load_sweep(ROOT / sweep, [], "full"))]
