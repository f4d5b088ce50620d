import assert from "node:assert/strict";
import { test } from "node:test";

import { checkLink, unsaid } from "#octavo/links.js";

test("only plain web and mail addresses are links", () => {
  assert.deepEqual(checkLink("https://Example.org/a?b#c"), { href: "https://example.org/a?b#c", host: "example.org" });
  assert.deepEqual(checkLink("http://example.org:8080"), { href: "http://example.org:8080/", host: "example.org:8080" });
  assert.equal(checkLink("mailto:a@example.org").host, "a@example.org");
  for (const address of [
    "javascript:alert(1)",
    "data:text/html,x",
    "vbscript:x",
    "file:///etc/passwd",
    "blob:https://example.org/1",
    "ftp://example.org",
    "//example.org",
    "/path",
    "#part",
    "",
    null,
    "https:example.org",
    "https:///example.org",
    "https://user@example.org",
    "https://user:secret@example.org",
    "https://exa\tmple.org",
    "https://example.org\\@evil.example",
    "https://example.org/\u202egpj.exe",
    "https://",
    "mailto:a@example.org,b@example.org",
    "mailto:nobody",
    `https://example.org/${"a".repeat(5000)}`,
  ])
    assert.equal(checkLink(address), null, String(address));
});

test("of a letter a link gives subject and text, and no further readers", () => {
  const { href } = checkLink("mailto:a@example.org?subject=Hi%20you&bcc=x@evil.example&attach=/etc/passwd&body=a%0Ab");
  assert.equal(href, "mailto:a@example.org?subject=Hi%20you&body=a%0Ab");
});

test("a text that names another host than its link has is found out", () => {
  const link = checkLink("https://evil.example/login");
  for (const text of ["https://bank.example", "bank.example", "www.bank.example/x", "go to https://bank.example now"])
    assert.equal(unsaid(link, text), "evil.example", text);
  for (const text of ["evil.example", "https://evil.example/login", "the bank", "README.md", "3.14", "e.g. this"])
    assert.equal(unsaid(link, text), "", text);
});
