"""Self-contained web pages: no script, no font and no picture from anywhere else, so they open without a network."""

from html import escape

__all__ = ["escape", "page"]

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2733; --soft: #5b6875; --line: #d5dbe1; --paper: #ffffff; --tint: #f3f6f8; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6ebf0; --soft: #9aa7b3; --line: #3a4651; --paper: #161c22; --tint: #1f272f; }
}
body { margin: 2rem auto; max-width: 72rem; padding: 0 1.25rem; font: 15px/1.5 system-ui, sans-serif; color: var(--ink);
  background: var(--paper); }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p { margin: .25rem 0; } .soft { color: var(--soft); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid var(--line); text-align: left; }
td.number, th.number { text-align: right; }
code { font: 13px ui-monospace, monospace; }
"""


def page(title: str, body: str, style: str = "") -> str:
    """Wrap the body of a page; ``style`` is added to the common one.

    >>> page("A & B", "<p>hello</p>").splitlines()[0]
    '<!doctype html>'
    """
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}{style}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )
