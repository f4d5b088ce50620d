"""OpenID Connect with a team's sign-in service: the authorization code flow with PKCE and a nonce.

Knows no accounts: begin() gives the address to send a browser to and what to remember, finish() gives the verified
Identity or raises SignInFailed. Sections are of OpenID Connect Core 1.0. Nothing that a service sends is trusted for
more than it signs: the ID token's signature is checked always, its issuer is the one that the team named, letter for
letter, its audience is us, its nonce is the one of this very browser, and it is fresh.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

import jwt
import requests
import structlog
from django.conf import settings
from django.core.cache import cache

from chatapp.sealing import Unreadable, unseal
from chatapp.tenants.arrivals import Identity
from chatapp.tenants.sign_in import SignIn
from chatapp.tenants.sign_in_services import CLIENT_SECRET

log = structlog.get_logger(__name__)

TIMEOUT_S = 5
LARGEST = 256 * 1024
KEPT_S = 600
# Clocks differ.
LEEWAY_S = 60
# Signatures only: with "none" or a shared secret anybody, or whoever knows the public key, could sign.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
NEEDED = ("authorization_endpoint", "token_endpoint", "jwks_uri")


class SignInFailed(Exception):
    """`str()` is for the person; `reason` for the log."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Attempt:
    """What this browser's session remembers between begin() and finish()."""

    state: str
    nonce: str
    verifier: str


def _unreachable(service: SignIn, reason: str) -> SignInFailed:
    return SignInFailed(f"The sign-in service of {service.tenant.name} does not answer as it should.", reason)


def _untrusted(service: SignIn, reason: str) -> SignInFailed:
    return SignInFailed(f"What the sign-in service of {service.tenant.name} sent cannot be trusted.", reason)


def _fetch(service: SignIn, method: str, url: str, **arguments: Any) -> dict[str, Any]:
    """A JSON object from the service: over TLS, from that very address, within time and size."""
    if not (url.startswith("https://") or (settings.OCTAVO_OIDC_PLAIN and url.startswith("http://"))):
        raise _unreachable(service, f"{url} is not https")
    try:
        with requests.request(
            method, url, timeout=TIMEOUT_S, allow_redirects=False, stream=True, **arguments
        ) as response:
            body = response.raw.read(LARGEST + 1, decode_content=True)
            status = response.status_code
    except (requests.RequestException, OSError) as error:
        raise _unreachable(service, f"{url}: {type(error).__name__}") from None
    if status != 200 or len(body) > LARGEST:
        raise _unreachable(service, f"{url}: status {status}, {len(body)} bytes")
    try:
        answer = json.loads(body)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise _unreachable(service, f"{url}: no JSON object")
    return answer


def _cached(service: SignIn, url: str, *, anew: bool = False) -> dict[str, Any]:
    key = "oidc:" + hashlib.sha256(f"{service.pk}:{url}".encode()).hexdigest()
    found = None if anew else cache.get(key)
    if found is None:
        found = _fetch(service, "GET", url)
        cache.set(key, found, KEPT_S)
    return dict(found)


def configuration(service: SignIn) -> dict[str, Any]:
    """The service's discovery document (OpenID Connect Discovery 1.0, 4.3: its issuer must be the one asked for)."""
    found = _cached(service, service.issuer.rstrip("/") + "/.well-known/openid-configuration")
    if found.get("issuer") != service.issuer:
        raise _untrusted(service, f"the configuration is of {found.get('issuer')!r}")
    if not all(isinstance(found.get(name), str) for name in NEEDED):
        raise _unreachable(service, "the configuration lacks an address")
    return found


def origin(service: SignIn) -> str:
    """Where a browser is sent: what a page's policy has to allow its form."""
    parts = urlsplit(configuration(service)["authorization_endpoint"])
    return f"{parts.scheme}://{parts.netloc}"


def begin(service: SignIn, *, callback: str, hint: str = "") -> tuple[str, Attempt]:
    attempt = Attempt(*(secrets.token_urlsafe(32) for _ in range(3)))
    challenge = base64.urlsafe_b64encode(hashlib.sha256(attempt.verifier.encode()).digest()).rstrip(b"=").decode()
    endpoint = configuration(service)["authorization_endpoint"]
    query = {
        "response_type": "code",
        "client_id": service.client_id,
        "redirect_uri": callback,
        "scope": "openid email profile",
        "state": attempt.state,
        "nonce": attempt.nonce,
        "code_challenge": challenge,
        "code_challenge_method": "S256",
    }
    if hint:
        query["login_hint"] = hint
    return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}", attempt


def finish(service: SignIn, *, callback: str, code: str, attempt: Attempt) -> Identity:
    document = configuration(service)
    tokens = _exchange(service, document, callback=callback, code=code, verifier=attempt.verifier)
    token = tokens.get("id_token")
    if not isinstance(token, str):
        raise _unreachable(service, "no ID token")
    claims = _verified(service, document, token)
    if not hmac.compare_digest(str(claims.get("nonce", "")).encode(), attempt.nonce.encode()):
        raise _untrusted(service, "nonce")
    if "email" not in claims:
        claims = _with_userinfo(service, document, claims, tokens.get("access_token"))
    # "true" as a text is what some services send.
    verified = claims.get("email_verified")
    return Identity(
        subject=str(claims["sub"]),
        email=str(claims.get("email") or ""),
        email_verified=verified is True or verified == "true",
        name=str(claims.get("name") or ""),
    )


def _exchange(service: SignIn, document: dict[str, Any], *, callback: str, code: str, verifier: str) -> dict[str, Any]:
    try:
        secret = unseal(service.sealed_secret, purpose=CLIENT_SECRET)
    except Unreadable:
        raise SignInFailed(
            f"{service.tenant.name} has to enter its service's client secret once more.", "the secret is unreadable"
        ) from None
    form = {"grant_type": "authorization_code", "code": code, "redirect_uri": callback, "code_verifier": verifier}
    # Core, 9: basic is what a service supports that does not say.
    methods = document.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
    if "client_secret_post" in methods:
        form |= {"client_id": service.client_id, "client_secret": secret}
        return _fetch(service, "POST", document["token_endpoint"], data=form)
    return _fetch(service, "POST", document["token_endpoint"], data=form, auth=(service.client_id, secret))


def _verified(service: SignIn, document: dict[str, Any], token: str) -> dict[str, Any]:
    """The ID token's claims (3.1.3.7)."""
    try:
        header = jwt.get_unverified_header(token)
        if header.get("alg") not in ALGORITHMS:
            raise _untrusted(service, f"algorithm {header.get('alg')!r}")
        key = _key(service, document, header)
        claims: dict[str, Any] = jwt.decode(
            token,
            key=key,
            algorithms=[header["alg"]],
            issuer=service.issuer,
            audience=service.client_id,
            leeway=LEEWAY_S,
            options={"require": ["iss", "sub", "aud", "exp", "iat"]},
        )
    except (jwt.PyJWTError, TypeError, ValueError) as error:
        raise _untrusted(service, type(error).__name__) from None
    several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
    if (several or "azp" in claims) and claims.get("azp") != service.client_id:
        raise _untrusted(service, "authorized party")
    subject = str(claims["sub"] or "")
    if not 0 < len(subject) <= 191 or not (subject.isascii() and subject.isprintable()):
        raise _untrusted(service, "subject")
    return claims


def _key(service: SignIn, document: dict[str, Any], header: dict[str, Any]) -> Any:
    """The service's key that a token names. An unknown one may be new: then its keys are asked for once more."""
    for anew in (False, True):
        keys = [
            key
            for key in jwt.PyJWKSet.from_dict(_cached(service, document["jwks_uri"], anew=anew)).keys
            if key.public_key_use in (None, "sig") and key.key_type != "oct"
        ]
        named = [key for key in keys if key.key_id == header.get("kid")]
        if len(named) == 1:
            return named[0].key
        if header.get("kid") is None and len(keys) == 1:
            return keys[0].key
    raise _untrusted(service, "no such key")


def _with_userinfo(
    service: SignIn, document: dict[str, Any], claims: dict[str, Any], access_token: object
) -> dict[str, Any]:
    """Some services keep the mail address out of the ID token; their userinfo must be about the same person (5.3.2)."""
    where = document.get("userinfo_endpoint")
    if not isinstance(where, str) or not isinstance(access_token, str):
        return claims
    info = _fetch(service, "GET", where, headers={"Authorization": f"Bearer {access_token}"})
    if info.get("sub") != claims["sub"]:
        raise _untrusted(service, "userinfo of somebody else")
    return {**info, **claims}
