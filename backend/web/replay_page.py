"""A race as one HTML file that needs no server and no network: the board with its replay, and the
record itself.
"""

import html
import json
import re
import zlib
from base64 import b64decode, b64encode
from typing import Any

from backend.errors import DerbyError
from backend.records.file import as_bytes
from backend.records.record import RaceRecord, board
from backend.results.scoreboard import Scoreboard
from backend.results.steps import first_differences, step_view
from backend.web.assets import asset, board_html, script_of
from backend.web.theme import variables
from backend.web.view import recorded_view

#: Reads what `_packed` wrote.
_UNPACK = """
const packed = atob(document.querySelector("#shown").textContent);
const bytes = new Blob([Uint8Array.from(packed, (c) => c.charCodeAt(0))]);
const inflated = bytes.stream().pipeThrough(new DecompressionStream("deflate"));
const { view, steps, differences } = await new Response(inflated).json();
"""

#: Starts them with what gradio would give to them, and answers what the inspector asks.
_START = """
const [board, inspector] = ["#board", "#inspector"].map((id) => document.querySelector(id));
modules["board.js"].start({ element: board, props: { value: view }, watch: () => {} });
const asked = { value: null };
let answer = () => {};
const inside = () => {
  const { column, index, difference } = asked.value;
  const at = difference ? (differences[0] ?? [-1, -1]) : [column, index];
  const step = steps[at[0]]?.[at[1]];
  asked.value = step ? { ...step, at } : { note: "There is no such step." };
  answer();
};
const watch = (_, draw) => (answer = draw);
modules["inspector.js"].start({ element: inspector, props: asked, watch, trigger: inside });
"""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
_RECORD = re.compile(r'<script type="text/plain" id="record">([\w+/=]*)</script>', re.ASCII)


def replay_page(record: RaceRecord) -> str:
    """The file's text."""
    title = f"Decode Derby: {record.request.prompt[:80]}"
    made = board(record)
    shown = {"view": recorded_view(record), **_inside(made)}
    styles = "\n".join(asset(name) for name in ("page.css", "replay.css"))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{html.escape(title)}</title>
<style>
body {{ margin: 0; padding: 16px 24px; font-family: system-ui, sans-serif; }}
body {{ color: var(--body-text-color); }}
:root {{ {variables(dark=False)} }}
.dark {{ {variables(dark=True)} background: var(--background-fill-secondary); }}
{styles}
.dd-recorded button {{ display: none; }}
</style>
</head>
<body>
<script>
const {{ matches }} = matchMedia("(prefers-color-scheme: dark)");
document.body.classList.toggle("dark", matches);
</script>
<main class="gradio-container">
<h1>Decode Derby</h1>
<p class="dd-prompt">{html.escape(record.request.prompt)}</p>
<div id="board">
{board_html()}
</div>
<div id="inspector">
{asset("inspector.html")}
</div>
</main>
<script type="text/plain" id="shown">{_packed(json.dumps(shown).encode())}</script>
<script type="text/plain" id="record">{_packed(as_bytes(record))}</script>
<script>
(async () => {{
{_UNPACK}
{script_of("board.js", "inspector.js")}
{_START}
}})();
</script>
</body>
</html>
"""


def _inside(made: Scoreboard) -> dict[str, Any]:
    """What the inspector may be asked: of each column every step, and where columns differ."""
    return {
        "steps": [
            [step_view(made, column, index) for index in range(len(score.moments))]
            for column, score in enumerate(made.scores)
        ],
        "differences": first_differences(made),
    }


def record_in(text: str, most: int) -> bytes:
    """The record's JSON in a file that `replay_page` made, `most` bytes at most. Raises DerbyError
    for another file.
    """
    found = _RECORD.search(text)
    if found is None:
        raise DerbyError("This page holds no race: choose one that Decode Derby saved.")
    try:
        inflate = zlib.decompressobj()
        data = inflate.decompress(b64decode(found[1]), most)
    except (ValueError, zlib.error) as error:
        raise DerbyError("The race in this page is damaged: save it again.") from error
    if inflate.unconsumed_tail:
        raise DerbyError(f"The race in this page is longer than {most:,} bytes: save it as JSON.")
    return data


def _packed(data: bytes) -> str:
    """Deflated, in characters that end no script element."""
    return b64encode(zlib.compress(data, 9)).decode()
