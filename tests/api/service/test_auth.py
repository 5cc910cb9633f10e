"""Bearer tokens of an identity provider: taken when they are good, refused when anything about them is not."""

import base64
import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from api import service_commands
from api.client import ServerError
from api.failures import InputError
from api.service import auth
from api.service.http.problem_json import ServiceError
from api.settings import Oidc
from tests.api.service.servers import Running, serving

PRIVATE = rsa.generate_private_key(public_exponent=65537, key_size=2048)
STRANGE = rsa.generate_private_key(public_exponent=65537, key_size=2048)
GOOD = {"iss": "https://id.example", "aud": "pipeplan", "tenant": "research", "scope": "plans:read openid"}


OTHER_KIND = base64.urlsafe_b64encode(b'{"alg": "ES256", "kid": "one"}').decode().rstrip("=")


def token(claims: dict[str, Any], *, key: Any = PRIVATE, kid: str = "one", **more: Any) -> str:
    return jwt.encode({"exp": time.time() + 60, **claims}, key, algorithm="RS256", headers={"kid": kid}, **more)


def key_set(folder: Path) -> Path:
    """The file with the public key of `PRIVATE`."""
    public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(PRIVATE.public_key()))
    file = folder / "jwks.json"
    file.write_text(json.dumps({"keys": [{**public, "kid": "one", "alg": "RS256", "use": "sig"}]}))
    return file


@pytest.fixture(scope="module")
def trusting(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A service that trusts an issuer."""
    folder: Path = tmp_path_factory.mktemp("oidc")
    oidc = Oidc(issuer="https://id.example", audience="pipeplan", jwks_file=key_set(folder))
    with serving(folder / "data", needs_keys=True, oidc=oidc) as started:
        yield started


def test_a_good_token(trusting: Running):
    """Tests that a token's tenant may do what its scope says, and nothing else."""
    client = trusting.client(token(GOOD))
    assert client.jobs() == []
    with pytest.raises(ServerError) as refusal:
        client.stop("0" * 32)
    assert refusal.value.status == 403


@pytest.mark.parametrize(
    "bad",
    [
        token({**GOOD, "exp": 1}),
        token({**GOOD, "aud": "another"}),
        token({**GOOD, "iss": "https://evil.example"}),
        token({**GOOD, "tenant": ""}),
        token({key: value for key, value in GOOD.items() if key != "tenant"}),
        token(GOOD, key=STRANGE),
        token(GOOD, kid="two"),
        jwt.encode({**GOOD, "exp": time.time() + 60}, None, algorithm="none", headers={"kid": "one"}),
        jwt.encode({**GOOD, "exp": time.time() + 60}, "x" * 64, algorithm="HS256", headers={"kid": "one"}),
        token({**GOOD, "tenant": "research\0"}),
        ".".join((OTHER_KIND, *token(GOOD).split(".")[1:])),
        "a.b.c",
    ],
    ids=[
        *("expired", "audience", "issuer", "no tenant", "tenant missing", "signature", "key", "none", "HS256"),
        *("tenant with NUL", "algorithm of another kind of key", "noise"),
    ],
)
def test_bad_tokens(trusting: Running, bad: str):
    """Tests that a token with anything wrong about it is no credential."""
    with pytest.raises(ServerError) as refusal:
        trusting.client(bad).jobs()
    assert refusal.value.status == 401


@pytest.mark.parametrize("text", ["", "[]", "null", '{"keys": []}', '{"keys": [1]}', '{"keys": [{"kty": "RSA"}]}'])
def test_keys_that_cannot_be_read_are_no_fault_of_the_token(tmp_path: Path, text: str):
    """Tests that a broken key set is refused at the start with its file, and later said to be the operator's."""
    with pytest.raises(InputError, match=r"jwks\.json: is no JSON Web Key Set \(.*\); give the issuer's public keys"):
        oidc_of(broken := tmp_path / "jwks.json", text=text)
    with pytest.raises(ServiceError) as refusal:
        auth._read_token(token(GOOD), Oidc(issuer=GOOD["iss"], audience="pipeplan", jwks_file=broken))
    assert (refusal.value.status, refusal.value.detail.rpartition("; ")[2]) == (503, "the operator has to correct them")


def oidc_of(file: Path, *, text: str) -> Oidc | None:
    file.write_text(text)
    switches = {"oidc_issuer": "https://id.example", "oidc_jwks": file, "oidc_audience": "pipeplan"}
    return service_commands._oidc(switches)


def test_a_key_set_with_a_byte_order_mark_is_read(tmp_path: Path):
    """Tests that it is read over, and the keys behind it are those of the provider."""
    text = key_set(tmp_path).read_text()
    found = oidc_of(tmp_path / "jwks.json", text=f"\ufeff{text}")
    assert found is not None
    assert auth._read_token(token(GOOD), found) is not None
