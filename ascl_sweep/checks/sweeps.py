"""What sweep files ask for: datasets, and room for their runs."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ascl_sweep.checks import Check
from ascl_sweep.room import Cluster, NoResources

if TYPE_CHECKING:
    from ascl_sweep.spec import SweepSpec


def datasets_of(spec: "SweepSpec") -> list[tuple[str, str]]:
    """The datasets that a sweep's runs read from disk, and where they look for them."""
    base = spec.base_values
    names = {str(cell.changes.get("data.name", base["data.name"])) for cell in spec.cells()}
    if domain := spec.domains.get("data.name"):
        names |= set(map(str, domain.choice or ()))
    return [(name, str(base["data.root"])) for name in sorted(names - {"shapes"})]


def of_sweeps(specs: Iterable["SweepSpec"], cluster: Cluster) -> Iterator[Check]:
    """Whether the runs of sweeps have room."""
    for spec in specs:
        try:
            kinds = spec.resources.kinds()
            for kind in kinds:
                cluster.check(kind)
            room = max(map(cluster.room, kinds))
            yield Check(f"room for {spec.name}", f"up to {room} runs at once")
        except NoResources as error:  # a sentence with its own way out
            yield Check(f"room for {spec.name}", str(error), False)
