"""A small OpenID Connect provider: a real HTTP server that knows one person, checks the client, and signs ID tokens.

A test says what it should do wrong: `claims` replaces or (None) leaves out claims, `sign` signs otherwise, `document`
changes the discovery document.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

CLIENT_ID = "octavo"
CLIENT_SECRET = "s3cret: with a colon & an ampersand"


def new_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


class Provider:
    def __init__(self) -> None:
        self.url = ""
        self.key = new_key()
        self.kid = "first"
        self.person: dict[str, Any] = {
            "sub": "17",
            "email": "mira@acme.example",
            "email_verified": True,
            "name": "Mira",
        }
        self.claims: dict[str, Any] = {}
        self.document: dict[str, Any] = {}
        self.sign: Callable[[dict[str, Any]], str] = self._sign
        self.userinfo: dict[str, Any] = {}
        self.codes: dict[str, dict[str, str]] = {}
        self.asked: list[str] = []
        self.basic = False

    def _sign(self, claims: dict[str, Any]) -> str:
        return jwt.encode(claims, self.key, algorithm="RS256", headers={"kid": self.kid})

    def configuration(self) -> dict[str, Any]:
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "userinfo_endpoint": f"{self.url}/userinfo",
            "jwks_uri": f"{self.url}/keys",
            **({} if self.basic else {"token_endpoint_auth_methods_supported": ["client_secret_post"]}),
            **self.document,
        }

    def keys(self) -> dict[str, Any]:
        return {"keys": [{**jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key(), as_dict=True), "kid": self.kid}]}

    def authorize(self, query: dict[str, str]) -> str:
        """Where the browser goes next: the person is logged in here and agrees to everything."""
        assert query["response_type"] == "code"
        assert query["client_id"] == CLIENT_ID
        assert query["code_challenge_method"] == "S256"
        assert "openid" in query["scope"].split()
        code = secrets.token_urlsafe()
        self.codes[code] = query
        return f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state']})}"

    def token(self, form: dict[str, str], authorization: str) -> dict[str, Any] | None:
        asked = self.codes.pop(form.get("code", ""), None)
        if self.basic:
            client = base64.b64decode(authorization.removeprefix("Basic ")).decode().split(":", 1)
        else:
            client = [form.get("client_id", ""), form.get("client_secret", "")]
        challenge = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        if (
            asked is None
            or client != [CLIENT_ID, CLIENT_SECRET]
            or form["redirect_uri"] != asked["redirect_uri"]
            or base64.urlsafe_b64encode(challenge).rstrip(b"=").decode() != asked["code_challenge"]
        ):
            return None
        now = int(time.time())
        claims: dict[str, Any] = {
            "iss": self.url, "aud": CLIENT_ID, "iat": now, "exp": now + 300, "nonce": asked["nonce"], **self.person,
            **self.claims,
        }  # fmt: skip
        claims = {name: value for name, value in claims.items() if value is not None}
        return {"access_token": "at", "token_type": "Bearer", "id_token": self.sign(claims)}


def _handler(provider: Provider) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

        def _say(self, body: Any, status: int = 200) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            provider.asked.append(parts.path)
            if parts.path == "/.well-known/openid-configuration":
                self._say(provider.configuration())
            elif parts.path == "/keys":
                self._say(provider.keys())
            elif parts.path == "/userinfo" and self.headers["Authorization"] == "Bearer at":
                self._say(provider.userinfo)
            elif parts.path == "/authorize":
                query = {name: values[0] for name, values in parse_qs(parts.query).items()}
                self.send_response(302)
                self.send_header("Location", provider.authorize(query))
                self.end_headers()
            else:
                self._say({}, 404)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            form = {name: values[0] for name, values in parse_qs(body).items()}
            answer = provider.token(form, self.headers["Authorization"] or "")
            self._say(answer or {"error": "invalid_grant"}, 200 if answer else 400)

    return Handler


@contextmanager
def running() -> Iterator[Provider]:
    provider = Provider()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(provider))
    provider.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
