"""Whether a Ray's dashboard answers, and to whom: who may use it may run code."""

import json
import urllib.request

from ascl_sweep.checks import Check


def dashboard_here() -> str | None:
    """How the dashboard of the Ray that we are part of knows its users; see `authentication`."""
    import ray
    from ray._private import ray_constants

    # Asked of our own connection: Ray's global one (internal_kv) is turned to whichever Ray of this
    # machine was started last by a `list_nodes()` without an address.
    ours = ray._private.worker.global_worker.gcs_client  # type: ignore[attr-defined]
    key, space = ray_constants.DASHBOARD_ADDRESS.encode(), ray_constants.KV_NAMESPACE_DASHBOARD
    address = ours.internal_kv_get(key, space)
    return authentication(address.decode()) if address else None


def authentication(dashboard: str) -> str | None:
    """How a dashboard knows its users (token, disabled); None if it does not answer."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"http://{dashboard}/api/authentication_mode", timeout=10) as answer:
            return str(json.load(answer)["authentication_mode"])
    except (OSError, ValueError, KeyError):
        return None


def of_dashboard(mode: str | None) -> list[Check]:
    """Whether a cluster's dashboard answers, and whether it wants a token."""
    if mode is None:
        way_out = 'install "ray[default]" on the head, and start it with --include-dashboard=true'
        return [Check("dashboard", "does not answer on the head", False, way_out)]
    return [
        Check("dashboard", "answers"),
        Check(
            "token",
            "asked for" if mode == "token" else "not asked for: whoever reaches it may run code",
            mode == "token",
            "`ray get-auth-token --generate`, put it on all nodes, start Ray with "
            "RAY_AUTH_MODE=token",
        ),
    ]
