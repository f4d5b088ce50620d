"""A fresh site in a real browser: the link from the log, the form with its test mail, the checklist, the first team."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page

from tests.operators.conftest import smtp
from tests.operators.smtp_server import Server
from tests.prepared import put_database
from tests.stack import ROOT, free_port, wait_for

__all__ = ["smtp"]

pytestmark = [pytest.mark.long, pytest.mark.browser, pytest.mark.timeout(300)]

PASSWORD = "correct horse battery"
# A folder to keep pictures of the pages in, for whoever looks at them.
PICTURES = os.environ.get("OCTAVO_PICTURES")


class Site:
    """A web process on an empty database; no demo, no engine."""

    def __init__(self, data: Path, redis_url: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        env = {k: v for k, v in os.environ.items() if k not in ("DATABASE_URL", "OCTAVO_MODELS")}
        env |= {
            "DJANGO_SETTINGS_MODULE": "chatapp.settings.local", "OCTAVO_DATA": str(data), "REDIS_URL": redis_url,
            "OCTAVO_URL": self.url,
        }  # fmt: skip
        put_database(data)
        collect = [sys.executable, "manage.py", "collectstatic", "--noinput", "-v0"]
        subprocess.run(collect, cwd=ROOT, env=env, check=True)
        self.log = data / "web.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "chatapp.daphne", "--port", str(self.port), "chatapp.asgi:application"],
                cwd=ROOT, env=env, stdout=log, stderr=log,
            )  # fmt: skip
        wait_for(self._answers, 60)

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/healthz").status_code == 200
        except httpx.TransportError:
            return False

    def link(self) -> str:
        found = wait_for(lambda: re.search(r"http://\S+/setup\?token=[0-9a-f]+", self.log.read_text()))
        return str(found[0])


@pytest.fixture
def fresh(tmp_path: Path, redis_url: str) -> Iterator[Site]:
    site = Site(tmp_path, redis_url)
    yield site
    site.process.terminate()
    site.process.wait(20)


def picture(page: Page, name: str) -> None:
    if PICTURES:
        page.screenshot(path=f"{PICTURES}/{name}.png", full_page=True)


def test_a_fresh_site_is_set_up_from_the_link_in_the_log(fresh: Site, browser: Browser, smtp: Server) -> None:
    complaints: list[str] = []
    context = browser.new_context(base_url=fresh.url, viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.on("console", lambda line: complaints.append(line.text) if line.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))

    page.goto("/")
    page.get_by_role("heading", name="Nobody runs this site yet").wait_for()
    picture(page, "token")
    page.get_by_label("Token").fill(fresh.link().partition("token=")[2])
    page.get_by_role("button", name="Go on").click()

    page.get_by_label("Your email").fill("me@example.org")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_label("The same again").fill(PASSWORD)
    page.get_by_label("Name of this site").fill("Atelier")
    page.get_by_label("Mail server").fill(smtp.url)
    page.get_by_role("button", name="Send a test mail to me").click()
    page.get_by_text("Sent. Look whether it is at me@example.org.").wait_for()
    assert smtp.mails[0]["To"] == "me@example.org"
    assert page.get_by_label("Password").input_value() == PASSWORD, "what was typed is kept"
    page.get_by_label("Name optional", exact=True).fill("Studio")
    page.get_by_label("Short name").fill("Not This")
    picture(page, "form")
    page.get_by_role("button", name="Set up", exact=True).click()
    page.get_by_text("inner hyphens").wait_for()
    picture(page, "form-wrong")
    for theme, width in (("dark", 1280), ("light", 390)):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
        picture(page, f"form-{theme}-{width}")
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, "nothing stands out of the page"
    page.set_viewport_size({"width": 1280, "height": 900})
    page.get_by_label("Short name").fill("studio")
    page.get_by_role("button", name="Set up", exact=True).click()

    page.wait_for_url("**/admin/checklist/")
    page.get_by_text("Atelier is set up, and you are its operator.").wait_for()
    page.get_by_role("heading", name="Mail").wait_for()
    picture(page, "checklist")
    page.get_by_role("button", name="It is taken care of").click()
    page.get_by_text("is saved elsewhere").wait_for()

    page.goto("/admin/site/sitesettings/")
    picture(page, "settings")
    page.goto("/admin/tenants/tenant/")
    page.get_by_role("link", name="Studio", exact=True).first.wait_for()
    picture(page, "teams")
    page.get_by_role("link", name="Studio", exact=True).first.click()
    page.get_by_role("link", name="Suspend…").wait_for()
    picture(page, "team")
    page.get_by_role("link", name="Suspend…").click()
    page.get_by_label("Reason").fill("Unpaid")
    picture(page, "suspend")
    page.get_by_role("button", name="Suspend").click()
    page.get_by_text("Studio is suspended").wait_for()
    assert page.goto("/t/studio/").status == 404  # type: ignore[union-attr]
    page.goto("/admin/tenants/tenant/?state=suspended")
    page.get_by_role("link", name="Studio", exact=True).first.click()
    page.get_by_role("link", name="Resume…").click()
    page.get_by_role("button", name="Resume").click()
    page.get_by_text("Studio is back.").wait_for()
    page.goto("/admin/tenants/tenant/add/")
    picture(page, "team-new")
    page.goto("/t/studio/")
    page.locator("#composer").wait_for()
    assert page.goto("/setup").status == 404  # type: ignore[union-attr]
    expected = "404 (Not Found)"
    assert [line for line in complaints if expected not in line and "400 (Bad Request)" not in line] == []
    context.close()
