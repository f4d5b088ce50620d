"""axe-core finds nothing on any page, in light and in dark, and on a phone.

Pages come from this process (served.py) with rows of every kind and with none, so no state is out of reach. Every
address of the product that answers with a page stands in one of the tables below; one that is in none fails here until
somebody has thought about it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.template.loader import render_to_string
from django.test import Client
from django.utils import timezone
from playwright.sync_api import BrowserContext, Page

from chatapp.tenants.models import Role
from tests.accounts.conftest import activate_app, logged_in, person
from tests.browser.served import ORIGIN, Served
from tests.chat.conftest import Team, server, strangers, team
from tests.data.conftest import a_chat, data_folder, sent
from tests.tenants.people import join, log_in
from tests.tenants.test_every_address import ids
from tests.usage.conftest import use

__all__ = ["data_folder", "ids", "sent", "server", "strangers", "team"]

pytestmark = [pytest.mark.browser, pytest.mark.long, pytest.mark.django_db]

AXE = (Path(__file__).parents[2] / "node_modules/axe-core/axe.min.js").read_text()
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
# What depends on colours is looked at in both themes, the rest in one.
OF_THEMES = ["color-contrast", "link-in-text-block"]
# Not pages: what is downloaded, read by programs, only posted to, or leads elsewhere at once.
NO_PAGES = re.compile(
    r"^(api/|v1|ws/|healthz|readyz|favicon|client/|admin/|t/<slug>/admin/$|$)"
    r"|/(export|exports/<export_id>|progress|download/)$"
    r"|/(<action>|remove|cancel|switch|rotate|revoke|again|callback|login)$"
    r"|^accounts/(2fa/webauthn/login/|2fa/webauthn/reauthenticate/|confirm-email/|login/code/confirm/|signup/)"
)
RUN = """async ([kind, values]) => {
  const found = await axe.run(document, {
    runOnly: { type: kind, values }, resultTypes: ["violations"], preload: false,
  });
  return found.violations.flatMap((rule) => rule.nodes.map((node) =>
    `${rule.id} at ${node.target.join(" ")}: ${node.html.slice(0, 200)}\\n      ${node.failureSummary.split("\\n").slice(1).join(" ").slice(0, 300)}`));
}"""


class Checked:
    """Opens pages and collects what axe finds on them."""

    def __init__(self, context: BrowserContext) -> None:
        context.add_init_script(AXE)
        self.served = Served(context)
        self.page = context.new_page()
        self.found: list[str] = []
        self.opened: set[str] = set()

    def open(self, path: str, client: Client | None = None, *, status: int = 200, narrow: bool = False) -> Page:
        if client is not None:
            self.served.client = client
        reply = self.page.goto(path)
        assert reply is not None
        assert reply.status == status, f"{path} answered {reply.status}"
        self.opened.add(path)
        self.look(path, narrow=narrow)
        return self.page

    def look(self, name: str, *, narrow: bool = False) -> None:
        """What is shown now: all rules in light, those of colours in dark too; all again as wide as a phone."""
        self._run(f"{name}, light", "light", "tag", TAGS)
        self._run(f"{name}, dark", "dark", "rule", OF_THEMES)
        if narrow:
            self.page.set_viewport_size({"width": 390, "height": 844})
            self._run(f"{name}, phone", "light", "tag", TAGS)
            wide = self.page.evaluate("document.documentElement.scrollWidth - innerWidth")
            if wide > 0:
                self.found.append(f"{name}, phone: wider than the screen by {wide} px")
            self.page.set_viewport_size({"width": 1280, "height": 800})

    def _run(self, name: str, theme: str, kind: str, values: list[str]) -> None:
        self.page.evaluate("theme => { document.documentElement.dataset.theme = theme; }", theme)
        self.found += [f"{name}: {line}" for line in self.page.evaluate(RUN, [kind, values])]

    def nothing(self) -> None:
        assert not self.found, f"{len(self.found)} findings:\n" + "\n".join(self.found)


@pytest.fixture(autouse=True, scope="module")
def _beside_playwright() -> Iterator[None]:
    """Playwright's loop lives in this thread, though nothing of Django's runs in it: it must not refuse to work."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        yield


@pytest.fixture
def checked(browser: Any) -> Iterator[Checked]:
    context = browser.new_context(
        base_url=ORIGIN, viewport={"width": 1280, "height": 800}, reduced_motion="reduce", color_scheme="light"
    )
    yield Checked(context)
    context.close()


def test_the_administration_of_a_team(checked: Checked, team: Team, strangers: Team, ids: dict[str, Any]) -> None:
    furnish(team)
    owner, base = log_in(team.owner), f"/t/{team.tenant.slug}"
    for path in PAGES_OF_A_TEAM:
        checked.open(path.format(base=base, **ids), owner, narrow=path.count("/") < 3)
    bare, base = log_in(strangers.owner), f"/t/{strangers.tenant.slug}"
    for path in PAGES_OF_A_TEAM:
        if "_id" not in path:
            checked.open(path.format(base=base), bare)
    checked.nothing()


PAGES_OF_A_TEAM = [
    "{base}/admin/",
    "{base}/admin/usage",
    "{base}/admin/members",
    "{base}/admin/members/{member_id}",
    "{base}/admin/invitations",
    "{base}/admin/invitations/new",
    "{base}/admin/audit",
    "{base}/admin/settings",
    "{base}/leave",
    "{base}/usage",
    "{base}/admin/keys",
    "{base}/admin/keys/new",
    "{base}/admin/keys/{key_id}",
    "{base}/admin/data",
    "{base}/admin/prompts",
    "{base}/admin/prompts/{assistant_id}",
    "{base}/admin/prompts/{assistant_id}/versions",
    "{base}/admin/prompts/{assistant_id}/settings",
    "{base}/admin/prompts/versions/{version_id}",
    "{base}/admin/prompts/versions/{version_id}/diff/{other_id}",
    "{base}/admin/sign-in",
    "{base}/admin/limits",
    "{base}/admin/batches",
    "{base}/admin/webhooks",
    "{base}/admin/webhooks/new",
    "{base}/admin/webhooks/{webhook_id}",
    "{base}/admin/webhooks/{webhook_id}/deliveries/{delivery_id}",
]
# Addresses of a team that are looked at elsewhere here, or that show one of the pages above with a form's errors in it.
OF_A_TEAM_ELSEWHERE = {
    "t/<slug>/",
    "t/<slug>/c/<conversation_id>",
    "t/<slug>/admin/limits/lower",
    "t/<slug>/admin/sign-in/domains",
    "t/<slug>/admin/sign-in/domains/<claim_id>",
    "t/<slug>/admin/sign-in/mfa",
    "t/<slug>/admin/sign-in/service",
    "t/<slug>/admin/webhooks/<webhook_id>/test",
    "t/<slug>/admin/webhooks/<webhook_id>/delete",
}
PAGES_OF_AN_ACCOUNT = [
    "/accounts/",
    "/accounts/2fa/",
    "/accounts/2fa/recovery-codes/",
    "/accounts/2fa/recovery-codes/generate/",
    "/accounts/2fa/totp/deactivate/",
    "/accounts/2fa/webauthn/",
    "/accounts/2fa/webauthn/add/",
    "/accounts/connections/",
    "/accounts/data",
    "/accounts/email/",
    "/accounts/logout/",
    "/accounts/password/change/",
    "/accounts/reauthenticate/",
    "/accounts/2fa/reauthenticate/",
    "/accounts/sessions/",
]
PAGES_FOR_ANYBODY = [
    "/accounts/login/",
    "/accounts/by-address/",
    "/accounts/inactive/",
    "/accounts/password/reset/",
    "/accounts/password/reset/done/",
    "/accounts/password/reset/key/done/",
    "/docs/",
    "/docs/websocket",
]
# Templates of pages that only bad days show.
BAD_DAYS = {
    "400.html": {},
    "403.html": {},
    "403_csrf.html": {},
    "404.html": {},
    "413.html": {},
    "429.html": {"when": "in 5 minutes"},
    "500.html": {},
    "account/signup_closed.html": {},
    "account/verification_sent.html": {},
    "account/verified_email_required.html": {},
    "account/email_confirm.html": {},
    "account/password_reset_from_key.html": {},
    "socialaccount/login_cancelled.html": {},
    "socialaccount/authentication_error.html": {"why": "The service did not answer.", "title": "No answer"},
    "setup/token.html": {"wrong": True},
    "tenant/invitation_over.html": {},
    "chat/no_team.html": {"closed": ["Acme"], "user": {"email": "mira@acme.example"}},
}


def test_pages_of_accounts_errors_and_documentation(checked: Checked, team: Team) -> None:
    for name, context in BAD_DAYS.items():
        checked.served.bodies[f"/{name}"] = render_to_string(name, context)
        checked.open(f"/{name}", narrow=name == "404.html")
    for path in PAGES_FOR_ANYBODY:
        checked.open(path, Client(), narrow=path in ("/accounts/login/", "/docs/"))
    checked.open("/setup", Client(), status=404)
    client = logged_in(person())
    checked.open("/accounts/2fa/totp/activate/", client)
    for path in ["/accounts/2fa/", "/accounts/data"]:
        checked.open(path, client)
    activate_app(client)
    for path in PAGES_OF_AN_ACCOUNT:
        checked.open(path, client, narrow=path == "/accounts/")
    checked.nothing()


def test_the_chat(checked: Checked, team: Team) -> None:
    client, base = log_in(team.member), f"/t/{team.tenant.slug}/"
    checked.open(base, client, narrow=True)
    talk = a_chat(team.member, "What does it do?", ANSWER, "And then?", "Nothing more.")
    page = checked.open(f"{base}c/{talk.pk}", client, narrow=True)
    page.get_by_role("button", name="Owner" if False else team.member.user.email[0]).first.click() if False else None
    page.locator("[popovertarget=account-menu]").click()
    checked.look("the account's menu")
    page.keyboard.press("Escape")
    checked.nothing()


def furnish(team: Team) -> None:
    for days in range(6):
        use(team.tenant, timezone.now() - timedelta(days=days))
    for name, role in (("ada", Role.ADMIN), ("ben", Role.MEMBER)):
        join(team.tenant, name, role)


ANSWER = """## What it does

It reads `plan.txt`, and [says](https://example.org/) **what** stands there.

```python
def f(x):
    return x * 2  # twice
```

| a | b |
|---|--:|
| 1 | 2 |

1. one
2. two

> quoted
"""
