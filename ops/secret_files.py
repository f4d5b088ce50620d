"""The secrets of a deployment as files: `python3 -m ops.secret_files [FOLDER]` makes those that are missing.

Promises: what is there is never changed, nothing is printed but names, and passwords that belong together agree (a
server's own and the one in the address that leads to it). Standard library only, as it runs on a bare server.

The folder is for its owner alone (0700), the files in it can be read by all (0444): Compose mounts each into its
container as it is, where a user of another number reads it, who never passes through the folder.
"""

from __future__ import annotations

import argparse
import os
import secrets
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

CERTIFICATE, KEY = "tls.crt", "tls.key"


class SecretsError(Exception):
    """One line that says what is in the way."""


def password() -> str:
    """Of letters that need no quoting in a URL, in SQL or in a configuration file."""
    return secrets.token_urlsafe(32)


def written(path: Path, text: str) -> Path:
    """Beside it, so that it takes its place as a whole or not at all."""
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    handle = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(text)
        os.fchmod(file.fileno(), 0o444)
    return part


def write(path: Path, text: str) -> None:
    """Never over what is there."""
    part = written(path, text)
    try:
        os.link(part, path)
    finally:
        part.unlink()


def replace(path: Path, text: str) -> None:
    written(path, text).replace(path)


def once(folder: Path, name: str, text: str) -> str:
    """What the file holds, which is `text` where there was none."""
    path = folder / name
    if not path.exists():
        write(path, text)
        print(f"  made {name}")
    return path.read_text()


def agree(folder: Path, address: str, host: str, file: str, held: str) -> None:
    """Raises SecretsError where the address of our own server has another password: one of the two was deleted, or is
    empty. Addresses of other servers are nobody's business here."""
    try:
        found = urlsplit((folder / address).read_text().strip())
    except ValueError:
        raise SecretsError(f"{folder / address} cannot be read as an address") from None
    if found.hostname == host and (not held or unquote(found.password or "") != held):
        raise SecretsError(
            f"{folder / address} has not the password of {folder / file}: they come in pairs. "
            "Write the same into both, or delete both and run this again."
        )


def make(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        once(folder, "secret_key", secrets.token_urlsafe(64))
        once(folder, "former_keys", "")
        once(folder, "postgres_password", password())
        database = once(folder, "database_password", password()).strip()
        once(folder, "database_url", f"postgres://octavo:{database}@postgres:5432/octavo")
        # A line of Redis's own configuration: on a command line it would stand in everybody's list of processes.
        auth = once(folder, "redis_auth.conf", f"requirepass {password()}\n").split()
        if auth[:1] != ["requirepass"] or len(auth) != 2:
            raise SecretsError(f"{folder / 'redis_auth.conf'} must read: requirepass PASSWORD")
        once(folder, "redis_url", f"redis://:{auth[1]}@redis:6379/0")
        once(folder, "metrics_token", password())
        once(folder, "mail_url", "")
        agree(folder, "database_url", "postgres", "database_password", database)
        agree(folder, "redis_url", "redis", "redis_auth.conf", auth[1])
    except OSError as error:
        raise SecretsError(f"{error.filename or folder}: {error.strerror}") from None


def new_secret_key(folder: Path) -> None:
    """What was signed and sealed with the one from before is still read: it goes to the former ones first."""
    make(folder)
    key, former = folder / "secret_key", folder / "former_keys"
    held = [key.read_text().strip(), *former.read_text().split()]
    replace(former, "".join(f"{one}\n" for one in held))
    replace(key, secrets.token_urlsafe(64))
    print("  made secret_key anew; the one before is in former_keys")


def self_signed(folder: Path, host: str) -> None:
    """A certificate to try it with, that no browser trusts."""
    if (folder / CERTIFICATE).exists() or (folder / KEY).exists():
        return
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "90", "-subj", f"/CN={host}", "-addext", f"subjectAltName=DNS:{host}"]
    command += ["-keyout", str(folder / KEY), "-out", str(folder / CERTIFICATE)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, umask=0o077)
    except FileNotFoundError:
        raise SecretsError("openssl is not there: install it, or bring a certificate of your own") from None
    if done.returncode:
        raise SecretsError(f"openssl could not make a certificate: {done.stderr.strip().splitlines()[-1]}")
    for name in (CERTIFICATE, KEY):
        (folder / name).chmod(0o444)
        print(f"  made {name}")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python3 -m ops.secret_files", description="Make the secrets that are missing."
    )
    parser.add_argument("folder", nargs="?", type=Path, default=Path("secrets"))
    parser.add_argument("--self-signed", metavar="HOST", help="also a certificate that no browser trusts, for a trial")
    parser.add_argument("--new-secret-key", action="store_true", help="a new one; what is signed by the old one holds")
    options = parser.parse_args()
    try:
        make(options.folder)
        if options.new_secret_key:
            new_secret_key(options.folder)
        if options.self_signed:
            self_signed(options.folder, options.self_signed)
    except SecretsError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"The secrets are in {options.folder}. Keep a copy where nobody else reads it.")
    missing = [name for name in (CERTIFICATE, KEY) if not (options.folder / name).exists()]
    if missing:
        print(f"Still missing: {' and '.join(missing)}, the certificate of the site with its chain, and its key.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
