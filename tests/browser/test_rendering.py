"""Answers as they are rendered: safe (P14), the same however they come, with code, tables and formulas to work with.

Texts are given to the page's own modules inside the real workspace, with its content policy; no model is asked.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser import hostile
from tests.browser.conftest import Chat

Picture = Callable[..., None]

TAGS = frozenset((
    "p", "br", "strong", "em", "s", "sup", "code", "pre", "blockquote", "ul", "ol", "li", "a", "hr", "span",
    "div", "h3", "h4", "h5", "h6", "table", "thead", "tbody", "tr", "th", "td", "button", "svg", "use", "math",
    "mrow", "mi", "mn", "mo", "ms", "mtext", "mspace", "mfrac", "msqrt", "mroot", "mstyle", "mpadded", "mphantom",
    "msub", "msup", "msubsup", "munder", "mover", "munderover", "mmultiscripts", "mprescripts", "none", "mtable",
    "mtr", "mtd", "menclose",
))  # fmt: skip
# What script adds to frames is here too; content has none of these but href, class and start.
ATTRIBUTES = frozenset((
    "class", "href", "rel", "target", "start", "dir", "tabindex", "role", "aria-label", "aria-pressed", "aria-expanded",
    "aria-hidden", "type", "title", "data-tex", "data-open", "style", "display", "displaystyle",
    "scriptlevel", "form", "fence", "separator", "stretchy", "symmetric", "largeop", "movablelimits", "accent",
    "accentunder", "linethickness", "mathvariant", "columnalign", "width", "height", "depth", "voffset", "lspace",
    "rspace", "minsize", "maxsize", "notation",
))  # fmt: skip

SHOW = """async ([sources, live]) => {
  const { MarkdownView } = await import('#octavo/markdown.js');
  const names = Object.keys(window).length;
  const place = document.createElement('section');
  place.id = 'place';
  document.querySelector('#log').parentElement.append(place);
  const around = () => [document.head.innerHTML, location.href, document.title,
    ...[...document.querySelectorAll('body *')].filter((one) => !place.contains(one) && one !== place).map((one) =>
      one.cloneNode().outerHTML)].join('|').replace(/ data-(?:tick|focus)="[^"]*"/g, '');
  const before = around();
  const boxes = [];
  for (const source of sources) {
    const box = place.appendChild(document.createElement('article'));
    box.className = 'text markdown';
    boxes.push(box);
    const view = new MarkdownView(box);
    const step = live ? Math.max(5, Math.ceil(source.length / 40)) : source.length;
    for (let at = step; at < source.length; at += step) view.update(source.slice(0, at), true);
    view.update(source);
  }
  const rest = () => place.querySelectorAll('.math:not(.ready, .failed)').length;
  for (let turn = 0; turn < 100 && rest(); turn += 1) await new Promise((done) => setTimeout(done, 20));
  for (const one of place.querySelectorAll('*'))
    for (const kind of ['mouseover', 'focus', 'load', 'error', 'toggle']) one.dispatchEvent(new Event(kind));
  await new Promise((done) => setTimeout(done, 150));
  const all = [...place.querySelectorAll('*')].filter((one) => !one.matches('article'));
  const result = {
    boxes: boxes.map((box) => box.innerText),
    tags: [...new Set(all.map((one) => one.localName))],
    attributes: [...new Set(all.flatMap((one) => one.getAttributeNames()))],
    styled: all.filter((one) => one.hasAttribute('style') && !one.closest('math')).map((one) => one.outerHTML),
    links: [...place.querySelectorAll('a')].map((one) => [one.getAttribute('href'), one.rel, one.target]),
    waiting: rest(),
    hit: window.hit ?? null,
    names: Object.keys(window).length - names,
    same: around() === before,
    wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  };
  place.remove();
  return result;
}"""


def test_nothing_that_an_answer_says_gets_out_of_it(chat: Chat) -> None:
    """P14: nothing runs, nothing is fetched, nothing around the message changes, and only known elements come of it."""
    page = chat.log_in().ready().page
    page.evaluate(SHOW, [["$x^2$\n\n```js\nlet a = 1;\n```"], False])  # what is loaded with the first of them is here
    asked: list[str] = []
    # The page's own list of conversations may be on its way.
    own = f"/api/t/{chat.team['slug']}/conversations"
    page.on("request", lambda request: None if request.url.endswith(own) else asked.append(request.url))
    address = page.url
    for live in (False, True):
        found: dict[str, Any] = page.evaluate(SHOW, [hostile.ALL, live])
        assert (found["hit"], found["names"], found["same"], found["waiting"]) == (None, 0, True, 0)
        assert set(found["tags"]) <= TAGS
        assert set(found["attributes"]) <= ATTRIBUTES
        assert found["styled"] == []
        assert found["wide"] <= 0
        assert found["links"]
        for href, rel, target in found["links"]:
            assert href.startswith(("https://", "mailto:a@b.example")), href
            assert "@evil" not in href
            assert (rel, target) == ("noopener nofollow noreferrer", "_blank")
    assert asked == []
    assert page.url == address


# What stands in the message, of the link that is written.
SAYS = [
    ("[https://bank.example](https://evil.example/a)", "https://bank.example (evil.example)"),
    ("[bank.example](https://evil.example)", "bank.example (evil.example)"),
    ("[www.bank.example/login](https://evil.example)", "www.bank.example/login (evil.example)"),
    ("[bank\u200b.example](https://evil.example)", "bank.example (evil.example)"),
    ("[https://bank.example@x](https://evil.example)", "https://bank.example@x (evil.example)"),
    ("[ceo@bank.example](mailto:x@evil.example)", "ceo@bank.example (x@evil.example)"),
    ("[b\u0430nk.example](https://b\u0430nk.example)", "b\u0430nk.example (xn--bnk-6cd.example)"),
    ("[\u202ekcilc\u202c](https://evil.example)", "kcilc"),
    ("[the bank](https://bank.example)", "the bank"),
    ("[bank.example](https://www.bank.example/a)", "bank.example"),
    ("[https://bank.example/a](https://bank.example/a?b=c)", "https://bank.example/a"),
    ("[README.md](https://example.org/README.md)", "README.md"),
    ("https://example.org/a?b=c", "https://example.org/a?b=c"),
    ("[](https://evil.example)", "evil.example"),
    ("![a picture](https://evil.example/p.png)", "Image: a picture"),
]


def test_a_link_shows_where_it_leads_when_its_text_says_otherwise(chat: Chat) -> None:
    page = chat.log_in().ready().page
    found = page.evaluate(SHOW, [[source for source, _ in SAYS], False])
    assert found["boxes"] == [text for _, text in SAYS]


RANDOM = (Path(__file__).parent / "random_markdown.js").read_text()


@pytest.mark.long
def test_a_text_that_comes_in_pieces_ends_as_it_would_at_once_and_keeps_its_finished_blocks(chat: Chat) -> None:
    """Random documents, cut anywhere: nothing throws, no finished block is replaced, the end is a fresh rendering's."""
    page = chat.log_in().ready().page
    assert page.evaluate(RANDOM, [11, 60]) == []


def show(page: Page, source: str, live: bool = False) -> None:
    page.evaluate(
        """async ([source, live]) => {
          const { MarkdownView } = await import('#octavo/markdown.js');
          const { log } = await import('#octavo/chat.js');
          let box = document.querySelector('#shown');
          if (!box) {
            box = document.createElement('div');
            box.id = 'shown';
            box.className = 'text markdown';
            const article = document.createElement('article');
            article.className = 'message assistant';
            article.append(box);
            log.empty.hidden = true;
            log.log.hidden = false;
            log.log.replaceChildren(article);
            window.view = new MarkdownView(box);
          }
          window.view.update(source, live);
        }""",
        [source, live],
    )


def test_what_is_only_read_aloud_does_not_make_the_page_around_the_messages_scroll(chat: Chat) -> None:
    """Whoever finds a word with the browser's search would push the frame out of sight, with no way back."""
    page = chat.log_in().ready().page
    show(page, "Words.\n\n" * 200 + "```js\nlet a = 1;\n```\n\n| a |\n|---|\n| $x^2$ |\n\n- [ ] done")
    assert page.evaluate("document.querySelector('#scroller').scrollHeight") > 2000
    assert page.evaluate("document.documentElement.scrollHeight - innerHeight") <= 0


LONG = "\n".join(f"value_{n} = compute({n})  # {'x' * (200 if n == 3 else 3)}" for n in range(60))


def test_code_is_folded_opened_wrapped_copied_and_saved(chat: Chat, picture: Picture) -> None:
    """At both widths: long code folds once it is finished, never under the reader; the rest is by button or key."""
    page = chat.log_in().ready().page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    source = f"Before.\n\n```python title=tool.py\n{LONG}\n```\n\nAfter."
    # While it grows and is looked at, it is open, and it stays so at its end.
    show(page, source[:900], live=True)
    show(page, source[:1900], live=True)
    page.evaluate("() => { window.frame_ = document.querySelector('#shown .code'); }")
    show(page, source)
    frame = page.locator("#shown .code")
    assert page.evaluate("() => window.frame_ === document.querySelector('#shown .code')")
    expect(frame.locator(".hljs-comment").first).to_be_attached()
    expect(frame.get_by_role("button", name="Show less")).to_be_attached()
    # Rendered when it was finished, it is folded; a key opens it, and that survives another rendering.
    again = (
        "() => document.querySelector('#shown').parentElement.remove() ?? document.querySelector('#shown')?.remove()"
    )
    page.evaluate(again)
    show(page, source)
    more = frame.get_by_role("button", name="Show all 60 lines")
    expect(more).to_have_attribute("aria-expanded", "false")
    assert frame.bounding_box()["height"] < 600
    picture(page)
    more.focus()
    more.press("Enter")
    expect(frame.get_by_role("button", name="Show less")).to_be_focused()
    page.evaluate(again)
    show(page, source)
    expect(frame.get_by_role("button", name="Show less")).to_be_attached()
    # The whole source is copied, as it was written.
    frame.get_by_role("button", name="Copy").click()
    expect(frame.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("() => navigator.clipboard.readText()") == LONG
    with page.expect_download() as saved:
        frame.get_by_role("button", name="Download").click()
    assert saved.value.suggested_filename == "tool.py"
    assert Path(saved.value.path()).read_text() == f"{LONG}\n"
    # A long line scrolls in its block, and wraps where the reader wants it: on this page and the next.
    wrap = frame.get_by_role("button", name="Wrap long lines")
    overflow = "() => { const pre = document.querySelector('#shown pre'); return pre.scrollWidth - pre.clientWidth; }"
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate(overflow) > 500
    assert page.evaluate("() => document.documentElement.scrollWidth") == 390
    wrap.click()
    expect(wrap).to_have_attribute("aria-pressed", "true")
    assert page.evaluate(overflow) == 0
    page.reload()
    chat.ready()
    show(page, source)
    expect(wrap).to_have_attribute("aria-pressed", "true")
    assert page.evaluate(overflow) == 0
    picture(page, "-phone")


THANKS = "It takes 5 s.\n  Thanks \U0001f469\u200d\U0001f467"
WRITTEN = f"Why is *this* <b>slow</b>?\n\n```sql\nSELECT 1;\n\nSELECT 2;\n```\n{THANKS}"


def test_what_a_reader_wrote_is_plain_but_for_the_code_in_it(chat: Chat) -> None:
    page = chat.log_in().ready().page
    found = page.evaluate(
        """async (text) => {
          const { PlainView } = await import('#octavo/plain.js');
          const box = document.createElement('div');
          new PlainView(box).update(text);
          const texts = [...box.childNodes].filter((one) => one.nodeType === Node.TEXT_NODE).map((one) => one.data);
          return [texts, box.querySelectorAll('.code').length, box.querySelector('code').textContent];
        }""",
        WRITTEN,
    )
    assert found == [["Why is *this* <b>slow</b>?", THANKS], 1, "SELECT 1;\n\nSELECT 2;\n"]


DOCUMENT = (Path(__file__).parent / "document.md").read_text()


def test_a_document_of_all_features_reads_well_and_copies_as_it_was_written(chat: Chat, picture: Picture) -> None:
    page = chat.log_in().ready().page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    for at in range(0, len(DOCUMENT), 97):
        show(page, DOCUMENT[:at], live=True)
    show(page, DOCUMENT)
    shown = page.locator("#shown")
    expect(shown.locator("math")).to_have_count(5)
    expect(shown.locator(".math.failed")).to_have_text("\\nosuch{x}")
    expect(shown.get_by_role("img", name="Done")).to_have_count(1)
    expect(shown.get_by_role("img", name="To do")).to_have_count(2)
    assert shown.locator("td.align-right").first.evaluate("(one) => getComputedStyle(one).textAlign") == "end"
    shown.locator(".table").hover()
    shown.locator(".table").get_by_role("button", name="Copy").click()
    expect(shown.locator(".table").get_by_role("button", name="Copied")).to_be_visible()
    cells = page.evaluate("() => navigator.clipboard.readText()")
    assert cells == "Term\tCoefficient\tError\nsine\t$b_n$\t0.318\ncosine\t$a_n$\t12.5"
    copied = page.evaluate(
        """() => {
          const range = document.createRange();
          range.selectNodeContents(document.querySelector('#shown'));
          getSelection().removeAllRanges();
          getSelection().addRange(range);
          let text = '';
          const listen = (event) => { text = event.clipboardData.getData('text/plain'); };
          document.addEventListener('copy', listen, { once: true });
          document.execCommand('copy');
          return text;
        }"""
    )
    assert "$\\frac{a_0}{2}$" in copied, json.dumps(copied)
    assert "make run" in copied
    assert "Copy" not in copied
    for theme in ("light", "dark"):
        page.evaluate("(theme) => { document.documentElement.dataset.theme = theme; }", theme)
        picture(page, f"-{theme}")
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("() => document.documentElement.scrollWidth") == 390
    picture(page, "-phone")
