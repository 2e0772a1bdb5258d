#!/usr/bin/env python3
"""The page at / in a browser: it asks, the answer grows in it, and nothing is wrong in the console.
usage: serve_page.py URL BROWSER PROMPT ANSWER
"""
import sys

from playwright.sync_api import sync_playwright

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
    page.wait_for_function("document.getElementById('note').textContent.startsWith('finished')")
    got = page.inner_text("#answer b")
    assert got.strip() == answer.strip(), (got, answer)
    page.fill("#tokens", "900")
    page.fill("#temperature", "4")  # hardly ever an end token
    page.click("#go")
    page.wait_for_function("""() => {
        const text = document.querySelector('#answer b');
        if (!text || text.textContent.length < 20) return false;
        document.getElementById('stop').click();
        return true;
    }""", polling=5)
    page.wait_for_function("document.getElementById('note').textContent === 'stopped'")
    wrong = [w for w in wrong if "favicon" not in w and "404" not in w]
    assert not wrong, wrong
    assert all(u.startswith(url) for u in asked), asked
    b.close()
print("ok")
