#!/usr/bin/env python3
"""page_test.py NANOVLLM MODEL [FOLDER]: uses the chat page in a headless Chromium, with the real server, and with one that
streams what a test chooses when it chooses. Screenshots go to FOLDER."""
import atexit
import os
import re
import sys
import urllib.request

import chromium
from page_servers import FakeServer, Server

THOUGHT, TEXT = "reasoning_content", "content"
LONG = "".join(f"Paragraph {i} of a long answer.\n\n" for i in range(60))
HOSTILE = """<img src=x onerror="document.title='hacked'"> </script><script>document.title='hacked'</script>
**<b onclick=alert(1)>bold</b>** and `<i>code</i>` [a](javascript:alert(1))

- <svg onload="document.title='hacked'">

# <iframe src="https://example.com"></iframe>

```html
<script>document.title = 'hacked'</script>
```"""
MARKDOWN = """Some *words* with **bold** and `code`.

1. one
2. two
   - inner

```python
print("hello")
```
After it: 2 * 3 * 4, a_b_c."""


def equal(found, expected):
    assert found == expected, f"{found!r} instead of {expected!r}"


def ask(browser, text):
    browser.js("document.getElementById('message').focus()")
    browser.type(text)
    browser.key("Enter")


DONE = "document.getElementById('send').textContent === 'Send'"
LAST = "[...document.querySelectorAll('.answer')].at(-1)"


def last(browser, selector):
    return browser.js(f"{LAST}.querySelector({selector!r})?.innerText")


def press(browser, label):
    """Presses the last button with this text or label."""
    browser.js(f"[...document.querySelectorAll('button')].filter(b => b.offsetParent && (b.textContent === {label!r} || "
               f"b.ariaLabel === {label!r})).at(-1).click()")


def fresh(browser, url):
    browser.open(url)
    browser.js("sessionStorage.clear(), localStorage.clear(), removeEventListener('pagehide', save)")
    browser.open(url)
    browser.wait("document.getElementById('model').textContent || !document.getElementById('key').hidden")


def test_with_the_model(browser, server):
    fresh(browser, server.url)
    equal(browser.js("document.activeElement.id"), "message")
    ask(browser, "Tell me a story about a fox.")
    browser.wait(f"{LAST}.querySelector('.stats')?.textContent.includes('first token after')")
    first = last(browser, ".text")
    assert first and "tokens/s" in last(browser, ".stats")
    press(browser, "Regenerate")
    browser.wait(f"{DONE} && {LAST}.querySelector('.meta').textContent.includes('2 of 2')")
    press(browser, "Previous answer")
    equal(last(browser, ".text"), first)
    browser.js("form.elements.max_tokens.value = 3")
    press(browser, "Regenerate")
    browser.wait(f"{DONE} && {LAST}.querySelector('.stats').textContent.includes('cut off at the limit of tokens · 3 tokens')")
    browser.js("form.elements.temperature.value = -1")
    press(browser, "Regenerate")
    browser.wait(f"{DONE} && {LAST}.querySelector('.error').textContent.includes('temperature is -1')")
    assert "3 tokens" in last(browser, ".stats"), "an earlier answer is lost"
    browser.open(server.url)  # a reload loses nothing
    browser.wait(f"{LAST}?.querySelector('.meta').textContent.includes('3 of 3')")
    equal(browser.js("form.elements.temperature.value"), "-1")


def test_streaming_and_stop(browser, fake):
    fresh(browser, fake.url)
    fake.answer([(TEXT, "One"), (TEXT, " two"), (TEXT, " three")], gated=True)
    ask(browser, "count")
    browser.wait("document.querySelector('.waiting')")
    equal(browser.js("document.getElementById('send').textContent"), "Stop")
    fake.release()
    browser.wait(f"{LAST}.innerText === 'One'")
    fake.release()
    browser.wait(f"{LAST}.innerText === 'One two'")
    browser.key("Escape")
    browser.wait(f"{DONE} && {LAST}.querySelector('.stats').textContent.startsWith('stopped')")
    equal(last(browser, ".text"), "One two")
    assert fake.client_is_gone.wait(30), "the request was not aborted"
    fake.answer([(TEXT, "yes")])
    ask(browser, "go on")
    browser.wait(f"{DONE} && {LAST}.querySelector('.text').textContent === 'yes'")
    equal([(m["role"], m["content"]) for m in fake.bodies[-1]["messages"]],
          [("user", "count"), ("assistant", "One two"), ("user", "go on")])
    assert "7 tokens" in last(browser, ".stats")


def test_thoughts(browser, fake):
    fresh(browser, fake.url)
    fake.answer([(THOUGHT, "Let me "), (THOUGHT, "think."), (TEXT, "Here.")], gated=True)
    ask(browser, "think")
    fake.release(2)
    browser.wait(f"{LAST}.querySelector('.thoughts div').textContent === 'Let me think.'")
    equal(last(browser, "summary"), "Thinking…")
    fake.release()
    browser.wait(DONE)
    equal(browser.js(f"{LAST}.querySelector('details').open"), False)
    equal((last(browser, ".text"), last(browser, "summary").startswith("Thought for")), ("Here.", True))
    browser.js(f"{LAST}.querySelector('summary').focus()")
    browser.key("Enter")
    equal(last(browser, ".thoughts div"), "Let me think.")
    fake.answer([(TEXT, "again")])
    ask(browser, "more")
    browser.wait(f"{DONE} && document.querySelectorAll('.answer').length === 2")
    equal(fake.bodies[-1]["messages"][1], {"role": "assistant", "content": "Here."})


def test_hostile_text(browser, fake):
    for kind in (TEXT, THOUGHT):
        fresh(browser, fake.url)
        fake.answer([(kind, piece) for piece in re.findall(r"(?s).{1,7}", HOSTILE)])
        ask(browser, HOSTILE)
        browser.wait(DONE)
        equal(browser.js("document.querySelectorAll('#turns :is(img, script, iframe, svg, a, b, i)').length"), 0)
        equal(browser.js("document.querySelector('.question').textContent"), HOSTILE)
        shown = browser.js(f"{LAST}.textContent")
        for part in ("<img src=x onerror=", "</script><script>", "<iframe src=", "<svg onload=", "<b onclick=",
                     "[a](javascript:"):
            assert part in shown, part
        assert "hacked" not in browser.js("document.title")
    many = "`" * 1000 + "*" * 1000 + "\n" + "> - " * 1000 + "\n" + "[" * 1000 + "\n" + "  - x\n" * 500 + "```"
    fake.answer([(TEXT, many)])
    ask(browser, "odd")
    browser.wait(DONE)
    # The policy holds even if somebody adds such code: no HTML from text, no script, no other server.
    equal(browser.js("(() => { try { document.body.innerHTML = 'x'; } catch (e) { return e.name; } })()"), "TypeError")
    equal(browser.js("fetch('https://example.com').then(() => 'loaded', () => 'refused')"), "refused")
    browser.problems.clear()


def test_markdown(browser, fake):
    fresh(browser, fake.url)
    fake.answer([(TEXT, piece) for piece in re.findall(r"(?s).{1,5}", MARKDOWN)])
    ask(browser, "show")
    browser.wait(DONE)
    tags = browser.js(f"[...{LAST}.querySelectorAll('.text *')].map(e => e.localName).join(' ')")
    equal(tags, "p em strong code ol li li ul li figure figcaption span button pre code p")
    equal(last(browser, "pre"), 'print("hello")')
    equal(last(browser, ".text > p:last-child"), "After it: 2 * 3 * 4, a_b_c.")
    browser.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    press(browser, "Copy the code")
    browser.wait(f"{LAST}.querySelector('figure button').textContent === 'Copied'")
    equal(browser.js("navigator.clipboard.readText()"), 'print("hello")')
    press(browser, "Copy the answer")
    browser.wait(f"{LAST}.querySelector('.meta button').textContent === 'Copied'")
    equal(browser.js("navigator.clipboard.readText()"), MARKDOWN)


def test_errors(browser, fake):
    fresh(browser, fake.url)
    for status, error, told in ((400, "top_k is -5; it must be at least -1", "top_k is -5"), (429, "busy", "too many requests"),
                                (500, "internal", "server failed"), (503, "the model is being loaded", "being loaded"),
                                (400, "the model has no chat template; use /v1/completions", "has no chat template")):
        fake.answer([], status, error)
        if browser.js("document.querySelector('.question')"):
            press(browser, "Try again")
        else:
            ask(browser, "question")
        browser.wait(f"{DONE} && {LAST}.querySelector('.error').innerText.includes({told!r})")
    fake.answer([(TEXT, "Half")], error="the engine has failed")
    press(browser, "Try again")
    browser.wait(f"{DONE} && {LAST}.querySelector('.error').innerText.includes('the engine has failed')")
    equal(last(browser, ".text"), "Half")
    fake.answer([(TEXT, "Part")], ends=False)
    press(browser, "Try again")
    browser.wait(f"{DONE} && {LAST}.querySelector('.error').innerText.includes('The connection broke')")
    fake.answer([(TEXT, "Whole")])
    press(browser, "Try again")
    browser.wait(f"{DONE} && {LAST}.querySelector('.text').innerText === 'Whole'")
    equal(browser.js(f"{LAST}.querySelector('.error').hidden"), True)
    equal(browser.js("document.querySelector('.question').innerText"), "question")
    browser.problems.clear()  # the console lists loads that fail


def test_server_that_is_gone(browser, page, headers):
    fake = FakeServer(page, headers)
    fresh(browser, fake.url)
    fake.shutdown()
    fake.server_close()
    ask(browser, "anybody?")
    browser.wait(f"{DONE} && {LAST}.querySelector('.error').innerText.includes('cannot be reached')")
    press(browser, "New chat")
    press(browser, "Bring back the last conversation")
    equal(browser.js("document.querySelector('.question').innerText"), "anybody?")
    browser.problems.clear()


def test_settings(browser, fake):
    fresh(browser, fake.url)
    fake.answer([(TEXT, "ok")])
    ask(browser, "a")
    browser.wait(DONE)
    equal(set(fake.bodies[-1]), {"messages", "stream", "stream_options", "model"})
    press(browser, "Settings")
    given = {"system": "Be brief.", "temperature": "0.5", "top_p": "0.9", "top_k": "40", "min_p": "0.1", "max_tokens": "99",
             "seed": "7", "thinking": "off", "schema": '{"type": "object"}'}
    for name, value in given.items():
        browser.js(f"form.elements[{name!r}].value = {value!r}")
    ask(browser, "b")
    browser.wait(f"{DONE} && document.querySelectorAll('.answer').length === 2")
    body = fake.bodies[-1]
    equal(body["messages"][0], {"role": "system", "content": "Be brief."})
    equal([body[name] for name in ("temperature", "top_p", "top_k", "min_p", "max_tokens", "seed", "chat_template_kwargs")],
          [0.5, 0.9, 40, 0.1, 99, 7, {"enable_thinking": False}])
    equal(body["response_format"], {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}})


def test_api_key(browser, url, key):
    fresh(browser, url)
    equal(browser.js("document.activeElement.id"), "secret")
    for given, told in (("", "asks for an API key"), ("wrong", "does not accept"), (key, None)):
        if given:
            browser.js("document.getElementById('secret').focus()")
            browser.type(given)
            browser.key("Enter")
        else:
            ask(browser, "introduce yourself")
        if told:
            browser.wait(f"{DONE} && {LAST}.querySelector('.error').innerText.includes({told!r})")
            browser.wait("!document.getElementById('key').hidden")
    browser.wait(f"{DONE} && {LAST}.querySelector('.stats').textContent.includes('tokens/s')")
    equal((browser.js("document.getElementById('key').hidden"), browser.js("document.getElementById('model').textContent")),
          (True, "tiny-tales"))
    equal(browser.js("[sessionStorage.apiKey, JSON.stringify(localStorage), document.cookie]"), [key, '{"theme":"auto"}', ""])
    browser.problems.clear()


def test_keyboard(browser, fake):
    fresh(browser, fake.url)
    fake.answer([(TEXT, "fine")])
    browser.type("first")
    browser.key("Enter", chromium.SHIFT)
    browser.type("second")
    browser.key("Enter")
    browser.wait(DONE)
    equal(fake.bodies[-1]["messages"][0]["content"], "first\nsecond")
    seen = []
    for _ in range(30):
        browser.key("Tab")
        now = browser.js("(e => e.textContent.trim() || e.name || e.localName)(document.activeElement)")
        if browser.js("document.activeElement === document.body"):
            continue
        if now in seen:
            break
        seen.append(now)
        outline = browser.js("getComputedStyle(document.activeElement).outlineStyle")  # of the message, the frame has a colour
        assert outline != "none" or browser.js("document.activeElement.id") == "message", f"{now} shows no focus"
        if now == "Settings":
            browser.key("Enter")
            equal(browser.js("document.activeElement.name"), "system")
            browser.key("Escape")
            equal(browser.js("document.activeElement.id + document.getElementById('side').hidden"), "settingstrue")
    for label in ("New chat", "Settings", "Theme: auto", "Copy", "Regenerate"):
        assert label in seen, f"{label} cannot be reached: {seen}"
    unnamed = browser.js("[...document.querySelectorAll('button, input, textarea, select')].filter(e => !e.labels?.length && "
                         "!e.ariaLabel && !e.textContent.trim()).length")
    equal(unnamed, 0)


def test_scrolling(browser, fake):
    fresh(browser, fake.url)
    fake.answer([(TEXT, LONG), (TEXT, "The end of it."), (TEXT, "\n\nLast.")], gated=True)
    ask(browser, "long")
    fake.release()
    at_end = "talk.scrollHeight - talk.scrollTop - talk.clientHeight < 2"
    browser.wait(f"talk.scrollHeight > 2000 && {at_end}")
    browser.js("talk.scrollTop = 200")
    browser.wait("!document.getElementById('end').hidden")
    fake.release()
    browser.wait(f"{LAST}.innerText.includes('The end of it.')")
    equal(browser.js("talk.scrollTop"), 200)
    press(browser, "To the end ↓")
    fake.release()
    browser.wait(f"{DONE} && {at_end} && document.getElementById('end').hidden")


def test_phone(browser, fake):
    browser.resize(360, 720, mobile=True)
    fresh(browser, fake.url)
    fake.answer([(TEXT, "w" * 500 + "\n\n```\n" + "c" * 500 + "\n```\n\n" + MARKDOWN)])
    ask(browser, "u" * 300)
    equal(browser.js("message.value"), "u" * 300 + "\n")  # Enter begins a line where there is no Shift
    press(browser, "Send")
    browser.wait(f"{DONE} && document.querySelectorAll('figure').length === 2")
    for label in (None, "Settings"):
        if label:
            press(browser, label)
        equal(browser.js("document.documentElement.scrollWidth"), 360)
        equal(browser.js("talk.scrollWidth <= talk.clientWidth"), True)
        outside = browser.js("[...document.querySelectorAll('button, input, textarea, select')].filter(e => e.offsetParent && "
                             "e.getBoundingClientRect().right > 360).length")
        equal(outside, 0)
    browser.resize(1100, 760)


def test_colours(browser, fake):
    light = "getComputedStyle(document.documentElement).backgroundColor.match(/\\d+/g).every(c => c > 128)"
    fresh(browser, fake.url)
    for scheme in ("dark", "light"):
        browser.prefer(scheme)
        equal(browser.js(light), scheme == "light")
    for theme, expected in (("Theme: light", True), ("Theme: dark", False)):
        browser.js("document.getElementById('theme').click()")
        equal((browser.js("document.getElementById('theme').textContent"), browser.js(light)), (theme, expected))
    browser.open(fake.url)
    equal(browser.js(light), False)


def screenshots(browser, server, folder):
    """page.png is docs/images/page.png."""
    browser.resize(1060, 600)
    fresh(browser, server.url)
    browser.js("form.elements.temperature.value = 0, form.elements.max_tokens.value = 100")
    for text in ("introduce yourself", "Tell me a story about a fox."):
        ask(browser, text)
        browser.wait(f"{DONE} && !!{LAST}.querySelector('.stats')")
    browser.js(f"{LAST}.querySelector('summary').click()")
    for scheme in ("light", "dark"):
        browser.prefer(scheme)
        browser.screenshot(os.path.join(folder, scheme + ".png"))
    press(browser, "Settings")
    browser.prefer("light")
    browser.screenshot(os.path.join(folder, "page.png"))
    press(browser, "Settings")
    browser.resize(360, 720, mobile=True)
    browser.screenshot(os.path.join(folder, "phone.png"))


def main():
    if not chromium.find():
        print("skipped: neither chromium nor google-chrome is installed")
        sys.exit(77)
    server = Server()
    with urllib.request.urlopen(server.url) as response:
        page, policy = response.read(), response.headers["Content-Security-Policy"]
        names = ("Content-Security-Policy", "X-Content-Type-Options", "Referrer-Policy")
        headers = [(name, response.headers[name]) for name in names]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy, policy
    assert not re.search(rb"(src|href)=\"(?!data:)", page), "the page loads something"
    fake, browser = FakeServer(page, headers), chromium.Browser()
    atexit.register(browser.close)
    browser.resize(1100, 760)
    protected = Server("--api-key", "secret")
    tests = ((test_with_the_model, server), (test_streaming_and_stop, fake), (test_thoughts, fake), (test_hostile_text, fake),
             (test_markdown, fake), (test_errors, fake), (test_server_that_is_gone, page, headers), (test_settings, fake),
             (test_api_key, protected.url, "secret"), (test_keyboard, fake), (test_scrolling, fake), (test_phone, fake),
             (test_colours, fake))
    for test, *arguments in tests:
        test(browser, *arguments)
        problems = [p for p in browser.problems if not (test is test_with_the_model and "400 (Bad Request)" in p)]
        equal(problems, [])
        browser.problems.clear()
        print(test.__name__, "passed", flush=True)
    if sys.argv[3:]:
        screenshots(browser, server, sys.argv[3])
    protected.stop()
    server.stop()


main()
