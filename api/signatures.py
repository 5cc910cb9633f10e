"""The signature of a webhook: made by the service, checked by the one that hears it."""

import hmac
import re

HEADER = "X-Pipeplan-Signature"

AGE_S = 300
"""A message whose signature is older is not believed: it may have been recorded."""

_FORM = re.compile(r"t=(\d{1,12}),v1=([0-9a-f]{64})", re.ASCII)


def sign(secret: str, body: bytes, *, moment: int) -> str:
    """The header's value for a body that is sent at that moment, in seconds since 1970."""
    return f"t={moment},v1={_seal(secret, body, moment=moment)}"


def is_signed(secret: str, body: bytes, *, header: str, now: float) -> bool:
    """Whether the holder of the secret sent this body, not long ago."""
    match = _FORM.fullmatch(header)
    if match is None or abs(now - int(match[1])) > AGE_S:
        return False
    return hmac.compare_digest(match[2], _seal(secret, body, moment=int(match[1])))


def _seal(secret: str, body: bytes, *, moment: int) -> str:
    return hmac.new(secret.encode(), f"{moment}.".encode() + body, "sha256").hexdigest()
