"""A headless chromium, pages that must not complain, and reports to look at."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="session")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright here; make test-browser installs it")
    if CHROMIUM is None:
        pytest.skip("no chromium here; make test-browser installs it")
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def open_page(browser):
    """`open_page(path, width=…, scheme=…)`; at the end no page may have logged an error or asked for anything."""
    contexts, complaints = [], []

    def opened(path, *, width=1280, height=900, scheme="light", ready=None):
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=scheme,
            accept_downloads=True,
            has_touch=width < 600,
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
        page.on(
            "request",
            lambda request: (
                None if request.url.startswith(("file:", "data:", "blob:")) else complaints.append(request.url)
            ),
        )
        page.goto(path.as_uri())
        if ready:
            page.wait_for_selector(ready)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture(scope="session")
def axe(tmp_path_factory):
    """`axe(page)`: the rules of accessibility that the page breaks; skips where there is no npm to get axe-core."""
    source = Path(os.environ["AXE_CORE"]) if "AXE_CORE" in os.environ else None
    if source is None:
        if shutil.which("npm") is None:
            pytest.skip("no npm here to get axe-core; or name its file in AXE_CORE")
        folder = tmp_path_factory.mktemp("axe")
        command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), "axe-core@4"]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("npm cannot get axe-core here")
        source = folder / "node_modules" / "axe-core" / "axe.min.js"
    script = source.read_text()

    def violations(page):
        page.evaluate(script)
        found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
        return [(rule["id"], rule["nodes"][0]["html"][:200], len(rule["nodes"])) for rule in found["violations"]]

    return violations
