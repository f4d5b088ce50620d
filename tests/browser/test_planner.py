"""The KV planner in a browser: sliders and fields change the figures, and the address keeps what was chosen."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.test import Client
from playwright.sync_api import Browser, expect

from chatapp.accounts.models import User
from chatapp.dashboard import planner_forms
from tests.browser.served import ORIGIN, Served, beside_playwright

__all__ = ["beside_playwright"]

pytestmark = [pytest.mark.browser, pytest.mark.django_db]


def test_sliders_change_the_figures_and_the_address_keeps_the_choices(
    browser: Browser, picture: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner_forms.workers, "live", list)
    client = Client()
    client.force_login(User.objects.create_superuser("operator@example.org", "a password"))
    context = browser.new_context(base_url=ORIGIN, viewport={"width": 1280, "height": 900})
    served = Served(context)
    served.client = client
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda line: complaints.append(line.text) if line.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    figures = page.locator("#figures")

    page.goto("/admin/planner/?model=-smollm2-135m&shared=0&lengths=fixed")
    page.locator("#choices[data-ready]").wait_for()
    counted = [row.locator("th, td").all_inner_texts()[:4] for row in page.locator(".sequences tbody tr").all()]
    assert [(tokens, blocks, unused) for tokens, blocks, _, unused in counted] == [
        ("32", "2", "0"), ("50", "4", "14"), ("17", "2", "15"), ("80", "5", "0"),
    ]  # fmt: skip

    # By the keyboard: twice the block size, and half of it again by its row in the table.
    slider = page.get_by_label("Tokens a block, slider")
    slider.focus()
    slider.press("ArrowRight")
    expect(page.get_by_label("Tokens a block", exact=True)).to_have_value("32")
    expect(figures.get_by_role("heading", name="Sequences in blocks of 32")).to_be_visible()
    figures.get_by_role("link", name="8", exact=True).click()
    expect(figures.get_by_role("heading", name="Sequences in blocks of 8")).to_be_visible()
    expect(slider).to_have_attribute("aria-valuetext", "8")
    expect(page.locator("#figures [aria-current] th")).to_be_focused()

    # What is wrong is said by its field, and mended there.
    memory = page.get_by_label("Memory for the KV pool", exact=True)
    memory.fill("lots")
    expect(figures.get_by_role("alert")).to_contain_text("is no size")
    expect(memory).to_have_attribute("aria-invalid", "true")
    memory.fill("2GiB")
    expect(memory).not_to_have_attribute("aria-invalid", "true")
    expect(figures).to_contain_text("11,650 blocks")  # 2 GiB // (8 * 23,040)

    # Typed numbers begin with those of the model that was chosen; the address is what somebody else can open.
    page.get_by_label("Model", exact=True).select_option("-typed")
    layers = page.get_by_label("Layers", exact=True)
    expect(layers).to_have_value("30")
    layers.fill("15")
    expect(figures).to_contain_text("23,301 blocks")
    page.wait_for_url("**/admin/planner/?*layers=15&*memory=2GiB&*block=8*")
    picture(page)
    page.reload()
    expect(layers).to_have_value("15")
    expect(figures).to_contain_text("23,301 blocks")

    # The server goes away, of which the console tells, and comes back.
    assert complaints == []
    page.route("**/figures/**", lambda route: route.fulfill(status=502))
    layers.fill("16")
    expect(figures.get_by_role("alert")).to_contain_text("the server did not answer")
    page.unroute("**/figures/**")
    figures.get_by_role("button", name="Try again").click()
    expect(figures.get_by_role("alert")).to_have_count(0)
    # Nobody is logged in any more: said so, with the way back to what was chosen.
    page.route("**/figures/**", lambda route: route.fulfill(status=302, headers={"Location": "/admin/login/"}))
    layers.fill("1")
    expect(figures.get_by_role("alert")).to_contain_text("not logged in as an operator any more")
    page.unroute("**/figures/**")
    figures.get_by_role("button", name="Log in again").click()
    page.wait_for_url("**/admin/planner/?*layers=1&*")
    expect(figures.locator(".said")).to_contain_text("1 layer, 3 KV heads of 64:")
    layers.fill("16")
    expect(figures.locator(".said")).to_contain_text("16 layers")
    complaints.clear()
    page.set_viewport_size({"width": 390, "height": 844})
    expect(page.locator("#brief")).to_be_in_viewport()
    page.wait_for_function("() => document.documentElement.scrollWidth <= innerWidth")
    # A table that is wider than the phone fades where there is more of it, and not where it ends.
    wide = figures.get_by_role("region", name="Sequences in blocks")
    expect(wide).to_have_attribute("data-more", "")
    picture(page, "-phone")
    wide.evaluate("(frame) => frame.scrollTo(frame.scrollWidth, 0)")
    expect(wide).not_to_have_attribute("data-more", "")
    assert complaints == []
    context.close()
