"""axe-core finds nothing on any page, in light and in dark, and on a phone.

Pages come from this process (served.py) with rows of every kind and with none, so no state is out of reach. Which pages
there are is read from the addresses themselves: a new one is looked at without being named here. What they cannot tell
stands in tables: templates that only bad days show, and states that somebody has to bring about.

All rules of WCAG 2.2 A and AA and axe's best practices hold, but for the operators' pages under /admin/, whose frame is
unfold's: there our own content is looked at, and not what stands around it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.cache import cache
from django.template.loader import render_to_string
from django.test import Client
from django.utils import timezone
from playwright.sync_api import Browser, BrowserContext, Page

from chatapp.accounts.models import User
from chatapp.audit import break_glass
from chatapp.tenants import invitations
from chatapp.tenants.models import Invitation, Role
from chatapp.usage.rollup import roll_up
from tests.accounts.conftest import activate_app, logged_in, person
from tests.api.test_isolation import ALL_ADDRESSES
from tests.browser.served import ORIGIN, Served, beside_playwright
from tests.chat.conftest import Team, server, strangers, team
from tests.data.conftest import a_chat, data_folder, sent
from tests.tenants.people import join, log_in
from tests.tenants.test_every_address import ids
from tests.usage.conftest import use

__all__ = ["beside_playwright", "data_folder", "ids", "sent", "server", "strangers", "team"]

pytestmark = [pytest.mark.browser, pytest.mark.long, pytest.mark.django_db]

AXE = (Path(__file__).parents[2] / "node_modules/axe-core/axe.min.js").read_text()
ALL = {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
# What depends on colours is looked at in both themes, the rest in one.
OF_THEMES = {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}
# What depends on how wide a page is.
OF_WIDTH = {
    "type": "rule",
    "values": [
        "target-size",
        "scrollable-region-focusable",
        "color-contrast",
        "landmark-unique",
        "aria-hidden-focus",
        "button-name",
        "link-name",
        "label",
        "region",
        "page-has-heading-one",
    ],
}
RUN = """async ([within, runOnly]) => {
  const found = await axe.run(within, { runOnly, resultTypes: ["violations"], preload: false });
  return found.violations.flatMap((rule) => rule.nodes.map((node) =>
    `${rule.id} at ${node.target.join(" ")}: ${node.html.slice(0, 200)}\\n      `
    + node.failureSummary.split("\\n").slice(1).join(" ").slice(0, 300)));
}"""
# Those that are looked at as wide as a phone, too: lists, figures, forms, and what is written and read.
NARROW = re.compile(
    r"/admin/(|usage|memory|members|audit|keys|webhooks|prompts|limits|batches|sign-in|data)$|/webhooks/[^/]+$"
    r"|/prompts/[0-9a-f-]+$|^/accounts/(login/)?$|^/docs/$|/404.html$|/t/\w+/(c/[^/]+)?$"
)

# Templates of pages that only bad days show, or links with tokens, and what they are told.
BAD_DAYS: dict[str, dict[str, Any]] = {
    "400.html": {},
    "403.html": {},
    "403_csrf.html": {},
    "404.html": {},
    "413.html": {},
    "429.html": {"when": "in 5 minutes"},
    "500.html": {},
    "account/email_confirm.html": {},
    "account/password_reset_from_key.html": {"token_fail": True},
    "account/signup_closed.html": {},
    "account/verification_sent.html": {},
    "account/verified_email_required.html": {},
    "chat/no_team.html": {"closed": ["Acme"], "user": {"email": "mira@acme.example"}},
    "setup/token.html": {"wrong": True},
    "socialaccount/authentication_error.html": {"why": "The service did not answer.", "title": "No answer"},
    "socialaccount/login_cancelled.html": {},
    "tenant/invitation_over.html": {"state": "expired"},
}

# Models begin with any level of headings, and skip some.
ANSWER = """### What it does

##### In short

It reads `plan.txt`, and [says](https://example.org/) **what** stands there.

```python
def f(x):
    return x * 2  # twice
```

| Port  | Height |
|-------|-------:|
| Brest |  6.1 m |

1. one
2. two

> quoted
"""


class Checked:
    """Opens pages and collects what axe finds on them."""

    def __init__(self, context: BrowserContext) -> None:
        context.add_init_script(AXE)
        self.served = Served(context)
        self.page = context.new_page()
        self.found: list[str] = []
        self.opened: set[str] = set()

    def visit(self, path: str, client: Client) -> bool:
        """Look at an address if it is a page for this client: not closed, no file, nothing that leads on."""
        reply = client.get(path)
        kind = reply.headers.get("Content-Type", "")
        if reply.status_code in (302, 403, 404, 405) or not kind.startswith("text/html"):
            return False
        assert reply.status_code == 200, f"{path} answered {reply.status_code}"
        self.open(path, client)
        return True

    def open(self, path: str, client: Client | None = None) -> Page:
        if client is not None:
            self.served.client = client
        self.page.goto(path)
        self.opened.add(path)
        # What axe does not see: lists of the frame that have lost their look.
        if self.page.evaluate(
            "[...document.querySelectorAll('#sidebar ul')].some((list) =>"
            " getComputedStyle(list).listStyleType !== 'none')"
        ):
            self.found.append(f"{path}: a list with bullets in the sidebar")
        self.look(path, narrow=bool(NARROW.search(path)))
        for opener in self.page.locator("[command=show-modal]:visible").all():
            opener.click()
            self.look(f"{path}, {opener.inner_text().strip()}")
            self.page.keyboard.press("Escape")
        return self.page

    def look(self, name: str, *, narrow: bool = False, within: str = "html") -> None:
        """What is shown now: all rules in light, those of colours in dark too, those of width on a phone."""
        self._run(f"{name}, light", "light", ALL, within)
        self._run(f"{name}, dark", "dark", OF_THEMES, within)
        if narrow:
            self.page.set_viewport_size({"width": 390, "height": 844})
            # What hears of its new width does so with a frame: two frames later all of it has.
            self.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
            self._run(f"{name}, phone", "light", OF_WIDTH, within)
            for width in (390, 320):
                self.page.set_viewport_size({"width": width, "height": 844})
                over = self.page.evaluate("document.documentElement.scrollWidth - innerWidth")
                if over > 0:
                    self.found.append(f"{name}: {over} px wider than a screen of {width} px")
            self.page.set_viewport_size({"width": 1280, "height": 800})

    def _run(self, name: str, theme: str, rules: dict[str, Any], within: str) -> None:
        self.page.evaluate("theme => { document.documentElement.dataset.theme = theme; }", theme)
        self.found += [f"{name}: {line}" for line in self.page.evaluate(RUN, [within, rules])]

    def nothing(self) -> None:
        assert not self.found, f"{len(self.found)} findings:\n" + "\n".join(self.found)


@pytest.fixture
def checked(browser: Browser) -> Iterator[Checked]:
    cache.clear()
    context = browser.new_context(
        base_url=ORIGIN, viewport={"width": 1280, "height": 800}, reduced_motion="reduce", color_scheme="light"
    )
    context.set_default_timeout(20_000)
    yield Checked(context)
    context.close()


def paths(beginning: str, ids: dict[str, Any]) -> Iterator[str]:
    """Every address with this beginning, with ids in it; one that names something that has none here is left out."""
    for address in ALL_ADDRESSES:
        names = set(re.findall(r"<(\w+)>", address))
        if address.startswith(beginning) and "^" not in address and names <= set(ids):
            yield "/" + re.sub(r"<(\w+)>", lambda name: str(ids[name[1]]), address)


def test_the_pages_of_a_team_with_everything_and_with_nothing(
    checked: Checked, team: Team, strangers: Team, ids: dict[str, Any]
) -> None:
    for days in range(6):
        use(team.tenant, timezone.now() - timedelta(days=days))
    use(team.tenant, state="failed", error_code="engine_fault")
    roll_up()
    for name, role in (("ada", Role.ADMIN), ("ben", Role.MEMBER)):
        join(team.tenant, name, role)
    owner, member = log_in(team.owner), log_in(team.member)
    for path in paths("t/<slug>/", {**ids, "slug": team.tenant.slug}):
        # What is a person's own is nobody else's.
        checked.visit(path, owner) or checked.visit(path, member)
    assert len(checked.opened) >= 30, sorted(checked.opened)
    bare = log_in(strangers.owner)
    for path in paths("t/<slug>/", {"slug": strangers.tenant.slug}):
        checked.visit(path, bare)
    # Searched for what is not there, and closed to a member.
    base = f"/t/{team.tenant.slug}/admin"
    for path in (f"{base}/members?q=nobody", f"{base}/audit?q=nothing"):
        checked.open(path, owner)
    checked.open(f"{base}/settings", member)
    # Forms with mistakes in them, and what is shown once.
    page = checked.open(f"{base}/keys/new", owner)
    for name in ("", "A key"):
        page.get_by_label("Name", exact=True).fill(name)
        page.evaluate("document.querySelector('main form').noValidate = true")
        with page.expect_navigation():
            page.locator("main form button[type=submit]").click()
        checked.look(f"a key called {name!r}")
    page = checked.open(f"{base}/webhooks/new", owner)
    page.evaluate("document.querySelector('main form').noValidate = true")
    with page.expect_navigation():
        page.locator("main form button[type=submit]").last.click()
    checked.look("a webhook without an address")
    checked.nothing()


def test_the_pages_of_accounts_of_bad_days_and_for_anybody(checked: Checked, team: Team, ids: dict[str, Any]) -> None:
    for name, context in BAD_DAYS.items():
        checked.served.bodies[f"/{name}"] = render_to_string(name, context)
        checked.open(f"/{name}")
    link = invitations.path(Invitation.objects.get(pk=ids["invitation_id"]))
    for path in ["/setup", "/docs/", "/docs/websocket", "/docs/members", "/docs/admins", "/docs/integrators", link]:
        checked.open(path, Client())
    # As anybody, as somebody with a password alone, and with a second factor.
    one = logged_in(person())
    two = logged_in(person("noa@acme.example"))
    activate_app(two)
    for client in (Client(), one, two):
        before = set(checked.opened)
        for path in paths("accounts/", {}):
            if path not in checked.opened or path in ("/accounts/2fa/", "/accounts/", "/accounts/email/"):
                checked.visit(path, client)
        assert len(checked.opened - before) >= 3
    assert {"/accounts/login/", "/accounts/2fa/", "/accounts/sessions/", "/accounts/data"} <= checked.opened
    page = checked.open("/accounts/login/", Client())
    page.get_by_label("Email").fill("mira@acme.example")
    page.get_by_label("Password").fill("wrong")
    page.keyboard.press("Enter")
    page.get_by_role("alert").first.wait_for()
    checked.look("a wrong password")
    checked.nothing()


def test_the_chat_and_what_opens_in_it(checked: Checked, team: Team) -> None:
    base = f"/t/{team.tenant.slug}/"
    checked.open(base, log_in(team.member))
    talk = a_chat(team.member, "What does it do?", ANSWER, "And then?", "Nothing more.")
    page = checked.open(f"{base}c/{talk.pk}")
    for menu in page.locator("[popovertarget]:visible").all():
        menu.click()
        checked.look(str(menu.get_attribute("popovertarget")))
        page.keyboard.press("Escape")
    page.keyboard.press("Control+k")
    checked.look("the palette", narrow=True)
    page.keyboard.type("zzzz")
    page.get_by_text("Nothing is called").wait_for()
    checked.look("the palette without anything")
    page.keyboard.press("Escape")
    page.locator("#title").click()
    page.keyboard.press("?")
    page.get_by_role("heading", name="Keyboard shortcuts").wait_for()
    checked.look("the help", narrow=True)
    page.keyboard.press("Escape")
    page.locator("#picker").set_input_files([{"name": "empty.txt", "mimeType": "", "buffer": b""}])
    page.locator("#input").fill("wörter " * 20_000)
    page.locator("#input").press("Enter")
    page.locator(".saying").wait_for()
    checked.look("a message that is too long, with a file that cannot be read", narrow=True)
    page.set_viewport_size({"width": 390, "height": 844})
    page.get_by_role("button", name="Sidebar").click()
    checked.look("the sidebar as a sheet")
    checked.nothing()


def test_our_own_content_of_the_operators_pages(checked: Checked, team: Team) -> None:
    operator = User.objects.create_superuser("op@octavo.test", "a password")
    talk = a_chat(team.member, "What does it do?", ANSWER)
    reading = break_glass.open_reading(user=operator, tenant=team.tenant, reason="Somebody asked for help", minutes=15)
    client = log_in(operator)
    checked.served.client = client
    for path in (
        "",
        "occupancy/",
        "checklist/",
        "planner/",
        "planner/?lengths=fixed",
        "planner/?block=0",
        "break-glass/",
        f"break-glass/{reading.pk}/",
        f"break-glass/{reading.pk}/c/{talk.pk}",
    ):
        for scheme in ("light", "dark"):
            checked.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            checked.page.goto(f"/admin/{path}")
            assert checked.page.evaluate(
                "scheme => document.documentElement.classList.contains('dark') === (scheme === 'dark')", scheme
            )
            found = checked.page.evaluate(RUN, ["#content", ALL])
            checked.found += [f"/admin/{path}, {scheme}: {line}" for line in found]
    checked.nothing()
