"""Checks of a store's address. Must not import pyarrow: `doctor` and `submit` run without it."""

import re

from ascl_sweep.errors import StoreError

_PASSWORD = re.compile(r"[^/]+://[^/?]*:(?!\d*(?:[/?]|$)).*@")  # the password may contain a slash


def is_remote(address: str) -> bool:
    """Whether an address is a URL (s3://…) instead of a path on this machine."""
    return "://" in address


def refuse_password(address: str) -> None:
    """Raise StoreError if the address contains a password. The error does not show the address."""
    if _PASSWORD.match(address):
        raise StoreError(
            "the store's address must not contain a password, because addresses are printed and "
            "recorded; set the credentials in the environment (AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY for s3://)"
        )
