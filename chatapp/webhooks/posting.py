"""One POST to an address that others have chosen: where it goes is checked, and how long and how much is bounded.

httpcore is used by itself: it follows no redirects and knows no proxies of the environment. It asks `_Guarded` for its
connection, which resolves and checks the name, and connects to the address that was checked; the certificate must be
the name's (SNI is the name). Every wait ends at one deadline, however slowly the other side trickles.
"""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import certifi
import httpcore

from chatapp.webhooks.targets import Forbidden, Unresolved, addresses_of

CONNECT_S = 5.0
TOTAL_S = 15.0
# Of an answer's body: enough to let the connection end in order, and none of it is kept.
MOST_BODY = 64 * 1024


@dataclass(frozen=True)
class Outcome:
    """`status` None: nothing has answered; `error` says why, in words, and is empty for a success (2xx)."""

    status: int | None
    error: str
    took_ms: int

    @property
    def ok(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


def post(url: str, *, headers: dict[str, str], body: bytes) -> Outcome:
    began = time.monotonic()
    status, error = None, ""
    try:
        status = _post(url, headers, body, deadline=began + TOTAL_S)
    except (Forbidden, Unresolved) as refused:
        error = str(refused)
    except (httpcore.ConnectTimeout, httpcore.ConnectError) as failed:
        error = str(failed) or "No connection came about."
    except httpcore.TimeoutException:
        error = f"There was no answer within {TOTAL_S:g} s."
    except (httpcore.NetworkError, httpcore.ProtocolError):
        error = "The connection broke before there was an answer."
    except ValueError:
        error = "What answered does not speak HTTP."
    if status is not None and not 200 <= status < 300:
        error = _words(status)
    return Outcome(status, error[:200], int(1000 * (time.monotonic() - began)))


def _post(url: str, headers: dict[str, str], body: bytes, *, deadline: float) -> int:
    backend = _Guarded(deadline)
    with (
        httpcore.ConnectionPool(ssl_context=_tls(), max_connections=1, network_backend=backend) as pool,
        pool.stream("POST", url, headers=list(headers.items()), content=body) as response,
    ):
        size = 0
        try:
            for part in response.iter_stream():
                size += len(part)
                if size > MOST_BODY:
                    break
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException):
            pass  # the status has come, which is all that counts
        return int(response.status)


def _words(status: int) -> str:
    if 300 <= status < 400:
        return f"It answered {status}, a redirect, which is not followed. Set the address that it leads to."
    if status == 410:
        return "It answered 410: nobody wants these any more. The webhook is switched off."
    return f"It answered {status}."


def _tls() -> ssl.SSLContext:
    own = any(os.environ.get(name) for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"))
    return _context("" if own else certifi.where())


@cache
def _context(authorities: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authorities or None)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


class _Guarded(httpcore.NetworkBackend):
    """Connects to public addresses only, and to the very one that was looked at."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        late: OSError | None = None
        for address in addresses_of(host.strip("[]"), port):
            try:
                connection = socket.create_connection((str(address), port), min(CONNECT_S, _left(self._deadline)))
            except OSError as error:
                late = error
                continue
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return _Stream(connection, self._deadline)
        if isinstance(late, TimeoutError):
            raise httpcore.ConnectTimeout(f"There was no connection within {CONNECT_S:g} s.")
        raise httpcore.ConnectError("The connection was refused, or there is no way there.")


class _Stream(httpcore.NetworkStream):
    """A socket whose every wait ends at the deadline."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._socket = connection
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        try:
            self._socket.settimeout(_left(self._deadline))
            return self._socket.recv(max_bytes)
        except TimeoutError:
            raise httpcore.ReadTimeout from None
        except OSError:
            raise httpcore.ReadError from None

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        try:
            self._socket.settimeout(_left(self._deadline))
            self._socket.sendall(buffer)
        except TimeoutError:
            raise httpcore.WriteTimeout from None
        except OSError:
            raise httpcore.WriteError from None

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        try:
            self._socket.settimeout(min(CONNECT_S, _left(self._deadline)))
            return _Stream(ssl_context.wrap_socket(self._socket, server_hostname=server_hostname), self._deadline)
        except TimeoutError:
            self.close()
            raise httpcore.ConnectTimeout(f"TLS did not come about within {CONNECT_S:g} s.") from None
        except ssl.SSLCertVerificationError as error:
            self.close()
            raise httpcore.ConnectError(f"Its certificate does not hold: {error.verify_message}.") from None
        except (OSError, ValueError):
            self.close()
            raise httpcore.ConnectError("TLS did not come about.") from None

    def close(self) -> None:
        self._socket.close()

    def get_extra_info(self, info: str) -> Any:
        return {"socket": self._socket, "is_readable": False}.get(info)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
