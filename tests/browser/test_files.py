"""Files in a chat, as somebody attaches, reads, sends and takes them off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.browser.conftest import Chat
from tests.files import pdfs

pytestmark = [pytest.mark.browser, pytest.mark.long]

MANUAL = "\n".join(
    f"Rule {number}: the door of room {number} opens at {number % 12 + 1} o'clock." for number in range(40)
)
DROP = """([type, name, text]) => {
  const data = new DataTransfer();
  data.items.add(new File([text], name));
  const target = document.querySelector(type === "paste" ? "#input" : "#log");
  const place = type === "paste" ? target : document.querySelector("main");
  for (const kind of type === "paste" ? ["paste"] : ["dragenter", "dragover", "drop"]) {
    const event = kind === "paste"
      ? new ClipboardEvent(kind, { clipboardData: data, bubbles: true, cancelable: true })
      : new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true });
    place.dispatchEvent(event);
    if (kind === "dragover") window.hinted = getComputedStyle(document.querySelector(".drop-hint")).display;
  }
}"""


def file(name: str, content: bytes | str) -> Any:
    return {"name": name, "mimeType": "", "buffer": content.encode() if isinstance(content, str) else content}


def tray(page: Page, state: str = "") -> Any:
    return page.locator(f"#files .file{f'[data-state={state}]' if state else ''}")


def test_files_are_attached_counted_sent_read_again_and_taken_off(
    chat: Chat, picture: Callable[..., None], complaints: list[str]
) -> None:
    page = chat.log_in().ready().page
    # By button, several at once; of one the type is refused in words.
    page.locator("#picker").set_input_files(
        [file("rules.md", MANUAL), file("report.pdf", pdfs.pdf("Figures of the year", "And their sum"))]
    )
    expect(tray(page, "ready")).to_have_count(2)
    expect(tray(page).nth(1)).to_contain_text("2 pages")
    expect(page.locator("#room")).to_contain_text("tokens; there is room for")
    page.evaluate(DROP, ["drop", "table.csv", "name,opens\nVault,nine"])
    assert page.evaluate("window.hinted") == "grid"
    page.evaluate(DROP, ["paste", "<b>note.txt", "Pasted <script>alert(1)</script>"])
    expect(tray(page, "ready")).to_have_count(4)
    page.locator("#picker").set_input_files([file("photo.png", b"\x89PNG\r\n\x1a\n" + bytes(99))])
    expect(tray(page, "failed")).to_contain_text("This is a PNG picture.")
    complaints.clear()  # the browser notes the refusal's status
    chat.field.fill("When does the door of room 7 open?")
    picture(page, "_tray")
    expect(page.get_by_role("button", name="Send")).to_be_disabled()
    page.get_by_role("button", name="Take off photo.png").click()
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    # What was attached is there after a reload, as drafts are.
    page.reload()
    chat.ready()
    expect(tray(page, "ready")).to_have_count(4)
    tray(page).nth(3).locator(".file-body").click()
    expect(page.locator("#preview pre")).to_have_text("Pasted <script>alert(1)</script>")
    picture(page, "_preview")
    page.keyboard.press("Escape")
    for name in ("table.csv", "<b>note.txt", "report.pdf"):
        page.get_by_role("button", name=f"Take off {name}").click()
    expect(tray(page)).to_have_count(1)
    chat.field.press("Enter")
    page.wait_for_url("**/c/*")
    expect(tray(page)).to_have_count(0)
    chat.wait_for_end()
    taken = chat.usage()["prompt_tokens"]
    assert taken > 600, "the whole file stands before the question"
    # Later turns find the file in the conversation's own blocks.
    chat.ask("And that of room 8?")
    chat.wait_for_end()
    usage = chat.usage()
    assert usage["prompt_tokens"] > taken
    assert usage["cached_tokens"] >= taken - 32, usage
    page.reload()
    chat.ready()
    sent = page.locator(".message.user .file")
    expect(sent).to_have_count(1)
    expect(sent).to_contain_text("rules.md")
    with page.expect_download() as saved:
        sent.locator(".file-body").click()
        expect(page.locator("#preview pre")).to_contain_text("Rule 39")
        page.get_by_role("link", name="Save").click()
    assert saved.value.suggested_filename == "rules.md"
    page.keyboard.press("Escape")
    picture(page, "_sent")
    # One that is too long for the model is refused before it is sent, with how much is too much.
    page.locator("#picker").set_input_files([file("long.txt", MANUAL * 40)])
    expect(page.locator("#room.over")).to_contain_text("more than fit into the")
    picture(page, "_over")
    chat.field.fill("Well?")
    expect(page.get_by_role("button", name="Send")).to_be_disabled()
    page.get_by_role("button", name="Take off long.txt").click()
    expect(page.locator("#room")).to_be_hidden()


@pytest.mark.parametrize(
    "context",
    [{"viewport": {"width": 390, "height": 780}, "has_touch": True, "is_mobile": True, "color_scheme": "dark"}],
    indirect=True,
)
def test_on_a_phone_files_fit_the_screen(context: BrowserContext, chat: Chat, picture: Callable[..., None]) -> None:
    page = chat.log_in().ready().page
    long_name = "Übersicht_über_alle_Zahlen_des_vergangenen_Jahres_und_ihre_Summen.csv"
    page.locator("#picker").set_input_files([file(long_name, "a,b\n1,2"), file("notes.txt", MANUAL)])
    expect(tray(page, "ready")).to_have_count(2)
    picture(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.get_by_role("button", name=f"Take off {long_name}").tap()
    page.get_by_role("button", name="Take off notes.txt").tap()
    expect(tray(page)).to_have_count(0)


def test_files_stay_with_their_conversation_while_they_are_sent_and_beside_another_tab(
    context: BrowserContext, chat: Chat
) -> None:
    page = chat.log_in().ready().page
    chat.ask("Hello")
    page.wait_for_url("**/c/*")
    chat.wait_for_end()
    address = page.url
    held: list[Any] = []
    page.route("**/files", lambda route: held.append(route))
    page.locator("#picker").set_input_files([file("slow.txt", "It takes its time.")])
    expect(tray(page, "uploading")).to_have_count(1)
    # It comes through while another conversation is open.
    page.get_by_role("link", name="New chat").first.click()
    expect(tray(page)).to_have_count(0)
    with page.expect_response("**/files"):
        held.pop().continue_()
    page.unroute("**/files")
    page.wait_for_function("Object.keys(localStorage).some((name) => name.startsWith('octavo:files:'))")
    page.goto(address)
    expect(tray(page, "ready")).to_contain_text("slow.txt")
    # Two tabs do not forget each other's, and show them at once.
    other = context.new_page()
    other.goto(address)
    expect(tray(other, "ready")).to_have_count(1)
    for tab, name, files in ((page, "here.txt", 2), (other, "there.txt", 3)):
        tab.locator("#picker").set_input_files([file(name, name)])
        for each in (page, other):
            expect(tray(each, "ready")).to_have_count(files)
    page.reload()
    expect(tray(page, "ready")).to_have_count(3)
    page.get_by_role("button", name="Take off there.txt").click()
    page.reload()
    expect(tray(page, "ready")).to_have_count(2)
