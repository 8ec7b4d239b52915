"""Pages in a real headless Chromium, where one is installed."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")


def in_chromium(text: str, script: str, folder: Path, *flags: str) -> dict:
    """Open a page with one more script at its end, and return what the script assigned to `found`."""
    script_tag = f"<script>const found = {{}}; {script}; const told = document.createElement('pre'); told.id = 'told';"
    script_tag += "told.textContent = JSON.stringify(found); document.body.append(told);</script></body>"
    path = folder / "page.html"
    path.write_text(text.replace("</body>", script_tag), encoding="utf-8")
    fixed = ("--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom", "--virtual-time-budget=2000")
    options = (f"--user-data-dir={folder / 'profile'}", "--no-first-run", "--disable-background-networking", *flags)
    run = subprocess.run([f"{CHROMIUM}", *fixed, *options, path.as_uri()], capture_output=True, text=True, timeout=120)
    output = re.search(r'<pre id="told">(.*?)</pre>', run.stdout, re.S)
    assert output, run.stderr[-2000:]
    return json.loads(html.unescape(output[1]))
