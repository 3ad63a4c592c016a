"""Drain this machine's Ray node when the cloud announces the end of the machine.

    python -m ascl_sweep.executors.ray.preemption aws|gcp   # watches until Ray ends here
    python -m ascl_sweep.executors.ray.preemption SECONDS   # the machine ends in so many seconds

The cluster files start it on workers: Ray 2.60 does not read the notices of clouds. The controller
then moves the node's runs (see `runtime/placement.py`).
"""

import json
import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from urllib.request import ProxyHandler, Request, build_opener

from ascl_sweep.executors.ray import compat
from ascl_sweep.executors.ray.cluster import PREFIX

AWS = "http://169.254.169.254/latest"
GCP = "http://metadata.google.internal/computeMetadata/v1"
GCP_SECONDS = 30.0  # from Google's notice to the end of the machine
LOOK_SECONDS = 2.0
ANSWER_SECONDS = 2.0

logger = logging.getLogger(__name__)


def aws_seconds_left() -> float | None:
    """Return the seconds until AWS ends this spot instance; raises OSError without a notice."""
    token = _ask(f"{AWS}/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, "PUT")
    notice = _ask(f"{AWS}/meta-data/spot/instance-action", {"X-aws-ec2-metadata-token": token})
    end = datetime.fromisoformat(json.loads(notice)["time"])
    return max(0.0, (end - datetime.now(UTC)).total_seconds())


def gcp_seconds_left() -> float | None:
    """Return the seconds until Google ends this spot machine; None without a notice."""
    preempted = _ask(f"{GCP}/instance/preempted", {"Metadata-Flavor": "Google"})
    return GCP_SECONDS if preempted == "TRUE" else None


CLOUDS = {"aws": aws_seconds_left, "gcp": gcp_seconds_left}


def _ask(url: str, headers: Mapping[str, str], method: str = "GET") -> str:
    request = Request(url, headers=dict(headers), method=method)
    # The metadata server is on this machine's own link, never behind a proxy.
    with build_opener(ProxyHandler({})).open(request, timeout=ANSWER_SECONDS) as answer:
        return str(answer.read().decode())


def watch(raylets: Sequence[compat.Raylet], seconds_left: Callable[[], float | None]) -> None:
    """Drain the nodes once there is a notice; return then, or once Ray has ended here.

    Args:
        raylets: The raylets of this machine.
        seconds_left: Asks the cloud; returns None or raises an error without a notice.
    """
    while any(raylet.is_alive for raylet in raylets):
        left = None
        with suppress(OSError, ValueError, KeyError):
            left = seconds_left()
        if left is not None and drain(raylets, left):
            return
        time.sleep(LOOK_SECONDS)


def drain(raylets: Sequence[compat.Raylet], seconds: float) -> bool:
    """Drain the nodes of this machine; return whether Ray has accepted all."""
    logger.warning("this machine ends in %.0f seconds; draining its node", seconds)
    why = "the cloud ends this machine"
    accepted = [compat.drain_node(raylet, int(seconds), why) for raylet in raylets]
    return all(accepted)


def main(how: str) -> None:
    """Watch for the notice of a cloud, or drain now and wait until Ray has ended.

    Args:
        how: Name of the cloud, or the number of seconds until this machine ends.
    """
    raylets = compat.find_own_raylets(PREFIX)
    if how in CLOUDS:
        watch(raylets, CLOUDS[how])
        return
    drain(raylets, float(how))
    # A draining raylet ends once its runs have moved; a pod may end as soon as this returns.
    while any(raylet.is_alive for raylet in raylets):
        time.sleep(1.0)


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(message)s")
    main(sys.argv[1])
