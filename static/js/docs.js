/* The documentation: examples get their colours and a button that copies them. It reads as well without. */

import { dressCode } from "#octavo/code.js";
import { useSprite } from "#octavo/dom.js";

useSprite(document.body.dataset.sprite);
for (const pre of document.querySelectorAll("main pre")) dressCode(pre);

// A phone has no room for a list of contents that is open beside the page.
const contents = document.querySelector(".contents details");
if (contents && matchMedia("(max-width: 60rem)").matches) contents.open = false;
