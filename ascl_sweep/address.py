"""What the address of a store may say; `doctor` asks also where pyarrow is missing."""

import re

_PASSWORD = re.compile(r"[^/]+://[^/?]*:(?!\d*(?:[/?]|$)).*@")  # it may itself hold a slash


def refuse_password(address: str) -> None:
    """Raise ValueError, without repeating it, if an address holds a password."""
    if _PASSWORD.match(address):
        raise ValueError(
            "the store's address must hold no password, for it is printed and recorded; give it "
            "in the environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for s3://)"
        )
