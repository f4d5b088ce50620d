"""Where mail goes, as one URL: smtp://user:password@host:587 and its kin. Knows no settings and no database.

smtp:// asks for STARTTLS, smtps:// is TLS from the first byte, and smtp://host?tls=none has neither, for a relay on
one's own network.
"""

from __future__ import annotations

import re
import smtplib
import socket
import ssl
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit

from django.core.mail import EmailMessage
from django.core.mail.backends.smtp import EmailBackend

PORTS = {"smtp": 587, "smtps": 465}
TIMEOUT_S = 10
# A name or an address; names beyond ASCII are written as xn--….
HOST = re.compile(
    r"(?=.{1,253}$)(?:[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*\.?|(?=[0-9a-f.]*:)[0-9a-f:.]+(?:%[a-z0-9._-]+)?)"
)


class BadUrl(ValueError):
    """The message says what is wrong, and never repeats a password."""


class NotSent(Exception):
    """The mail server did not take it; the message says which step failed, for people."""


@dataclass(frozen=True)
class Server:
    scheme: str
    host: str
    port: int
    user: str = ""
    password: str = ""
    plain: bool = False

    @property
    def shown(self) -> str:
        """The URL without its password."""
        login = f"{quote(self.user, safe='')}:…@" if self.user else ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{login}{host}:{self.port}{'?tls=none' if self.plain else ''}"

    def connection(self) -> EmailBackend:
        return EmailBackend(
            host=self.host,
            port=self.port,
            username=self.user,
            password=self.password,
            use_tls=self.scheme == "smtp" and not self.plain,
            use_ssl=self.scheme == "smtps",
            timeout=TIMEOUT_S,
        )


def parse(url: str) -> Server:
    """Raises BadUrl."""
    form = "Write it as smtp://user:password@host:587 (STARTTLS), smtps://… (TLS) or smtp://host:25?tls=none."
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        raise BadUrl(f"This is no address of a mail server. {form}") from None
    if parts.scheme not in PORTS or not parts.hostname or not HOST.fullmatch(parts.hostname):
        raise BadUrl(f"This is no address of a mail server. {form}")
    if parts.path not in ("", "/") or parts.query not in ("", "tls=none", "tls=starttls") or parts.fragment:
        raise BadUrl("Nothing belongs behind the host; write special characters of a password as %40 and the like.")
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    if bool(user) != bool(password):
        raise BadUrl("A user needs a password, and a password its user.")
    if any(ord(c) < 32 for c in user + password):
        raise BadUrl("User and password cannot have control characters.")
    plain = parts.scheme == "smtp" and parts.query == "tls=none"
    return Server(parts.scheme, parts.hostname, port or (25 if plain else PORTS[parts.scheme]), user, password, plain)


def send(server: Server, message: EmailMessage) -> None:
    """Raises NotSent."""
    at = f"{server.host}:{server.port}"
    try:
        server.connection().send_messages([message])
    except smtplib.SMTPAuthenticationError:
        raise NotSent(f"{at} does not take this user and password.") from None
    except smtplib.SMTPNotSupportedError:
        raise NotSent(f"{at} cannot do what is asked: try smtps://, or ?tls=none on your own network.") from None
    except smtplib.SMTPSenderRefused:
        raise NotSent(f"{at} does not take mail from {message.from_email}.") from None
    except smtplib.SMTPRecipientsRefused:
        raise NotSent(f"{at} does not take mail to {', '.join(message.to)}.") from None
    except ssl.SSLError as error:
        raise NotSent(f"No safe connection to {at}: {error.reason or 'TLS failed'}.") from None
    except socket.gaierror:
        raise NotSent(f"There is no host {server.host}.") from None
    except UnicodeError:
        raise NotSent(f"{at} cannot be told a user, password or address beyond ASCII.") from None
    except TimeoutError:
        raise NotSent(f"{at} did not answer within {TIMEOUT_S} s.") from None
    except smtplib.SMTPServerDisconnected:
        raise NotSent(f"{at} hung up. Is it the right port for {server.scheme}://?") from None
    except smtplib.SMTPException as error:
        raise NotSent(f"{at} refused it ({type(error).__name__}).") from None
    except OSError as error:
        raise NotSent(f"{at} cannot be reached: {error.strerror or type(error).__name__}.") from None
