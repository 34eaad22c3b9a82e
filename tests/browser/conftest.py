"""A headless chromium, pages that must not complain, and reports to look at."""

import shutil

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
