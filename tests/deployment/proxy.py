"""deploy/proxy/nginx.conf.template as the proxy's container writes it out: ${OCTAVO_…} filled in, and nothing else."""

from __future__ import annotations

import re

from tests.conftest import ROOT

TEMPLATE = ROOT / "deploy" / "proxy" / "nginx.conf.template"


def rendered(env: dict[str, str]) -> str:
    return re.sub(r"\$\{(OCTAVO_\w+)\}", lambda found: env[found[1]], TEMPLATE.read_text())


def upstream(*ports: int) -> dict[str, str]:
    """Web processes at addresses of this machine, in the place of a name that Docker's resolver knows."""
    servers = " ".join(f"server 127.0.0.1:{port} max_fails=0;" for port in ports)
    return {"OCTAVO_UPSTREAM": servers, "OCTAVO_RESOLVER": ""}
