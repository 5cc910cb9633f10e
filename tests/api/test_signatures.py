"""The signature of a webhook: tests of api/signatures.py."""

from api.signatures import AGE_S, is_signed, sign


def test_signatures():
    """Tests that a signature holds for its secret, body and time only."""
    header = sign("secret", b"body", moment=1000)
    assert is_signed("secret", b"body", header=header, now=1000 + AGE_S)
    assert not is_signed("secret", b"body", header=header, now=1001 + AGE_S)
    assert not is_signed("other", b"body", header=header, now=1000)
    assert not is_signed("secret", b"Body", header=header, now=1000)
    assert not is_signed("secret", b"body", header="t=1000,v1=", now=1000)
