#!/usr/bin/env python3
"""The page at / in a browser: it asks, the answer grows in it, and nothing is wrong in the console.
usage: serve_page.py URL BROWSER PROMPT ANSWER
"""
import re
import sys

from playwright.sync_api import expect, sync_playwright

url, browser, prompt, answer = sys.argv[1:]
with sync_playwright() as p:
    b = p.chromium.launch(executable_path=browser, args=["--no-sandbox"])
    page = b.new_page()
    wrong, asked = [], []
    page.on("console", lambda m: wrong.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda e: wrong.append(str(e)))
    page.on("request", lambda r: asked.append(r.url))
    page.goto(url)
    page.fill("#prompt", prompt)
    page.fill("#tokens", "12")
    page.click("#go")
    note, text = page.locator("#note"), page.locator("#answer b")
    expect(note).to_have_text(re.compile("^finished: "), timeout=30000)
    got = text.inner_text()
    assert got.strip() == answer.strip(), (got, answer)
    # A slow network, so that there is something to stop.
    page.context.new_cdp_session(page).send("Network.emulateNetworkConditions", {
        "offline": False, "latency": 0, "downloadThroughput": 4000, "uploadThroughput": -1})
    page.fill("#tokens", "900")
    page.fill("#temperature", "4")  # hardly ever an end token
    page.click("#go")
    expect(text).to_have_text(re.compile(".{10}", re.S), timeout=30000)
    page.click("#stop")
    expect(note).to_have_text("stopped", timeout=30000)
    wrong = [w for w in wrong if "favicon" not in w and "404" not in w]
    assert not wrong, wrong
    assert all(u.startswith(url) for u in asked), asked
    b.close()
print("ok")
