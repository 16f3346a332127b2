"""The pages in a real Chromium, over the answers of mock_server.py: test_pages.py [NAME...]

Each test has a server, and so an origin and a storage, of its own. After each one the console must hold no error and no
violation of the Content-Security-Policy.
"""
import contextlib
import glob
import json
import os
import sys
import tempfile
import time
import traceback

import browser as browsers
import mock_server
from selenium.webdriver.common.keys import Keys

ANSWER, FACTS = "article.assistant > .text", "article.assistant .facts"


def ready(b, address, path="/"):
    b.open(address + path)
    b.until("the models are there", lambda: b.js("return document.querySelector('#model option') !== null"))


def bodies(server):
    return [[(m["role"], m["content"]) for m in body["messages"]] for body in server.asked]


def audit(b, what):
    problems = b.js(browsers.AUDIT)
    assert not problems, f"{what}:\n  " + "\n  ".join(problems)


def fits(b, what):
    wide = b.js("return document.documentElement.scrollWidth - innerWidth")
    assert wide <= 0, f"{what} is {wide} pixels wider than the screen"


def test_a_conversation_is_answered_drawn_and_kept(b, server, address):
    ready(b, address)
    b.say("markdown")
    drawn = b.js("const a = document.querySelector('article.assistant > .text'); return [...a.querySelectorAll('h4, em, strong, del, ol > li > ul > li, table td, pre code, blockquote a')].map((e) => e.tagName + ' ' + e.textContent)")
    assert drawn == ["H4 A heading", "EM words", "STRONG bold", "DEL gone", "LI nested", "LI more", "TD alpha", "TD 42",
                     "CODE def add(a, b):\n    return a + b", "A A page"], drawn
    assert "snake_case_name and 2 * 3 * 4" in b.text(ANSWER)
    for fact in ("tokens/s", "3 hops: alpha 0:12 → beta 12:24 → gamma 24:30", "1 failover survived", "118 cached tokens", "checked"):
        assert fact in b.text(FACTS), b.text(FACTS)
    assert "A heading" in b.js("return document.getElementById('announcer').textContent")
    b.say("second")
    assert bodies(server)[1] == [("user", "markdown"), ("assistant", mock_server.MARKDOWN), ("user", "second")], bodies(server)[1]
    assert server.asked[0]["stream"] is True and server.asked[0]["stream_options"]["include_usage"] is True
    b.js("location.reload()")
    b.until_text(ANSWER, "An answer to: second")
    assert b.text("#list .open") == "markdown" and "3 hops" in b.text(FACTS)


def test_reasoning_is_folded(b, server, address):
    ready(b, address)
    b.say("think")
    assert b.js("const d = document.querySelector('.reasoning'); return !d.hidden && !d.open && d.textContent.includes('Let me think.')")
    assert b.text(ANSWER) == "An answer to: think"


def test_a_stop_keeps_what_was_written_and_tells_the_server(b, server, address):
    ready(b, address)
    for stop in (lambda: b.click("#stop"), lambda: b.type(Keys.ESCAPE)):
        server.left.clear()
        b.begin("endless")
        b.until_text(ANSWER, "slow slow")
        stop()
        b.idle()
        assert "You stopped this answer." in b.text("article.assistant .problem") and "slow slow" in b.text(ANSWER)
        assert server.left.wait(browsers.WAIT_S), "the server never noticed"


def test_a_reload_keeps_the_draft_and_an_interrupted_answer(b, server, address):
    ready(b, address)
    b.type("a draft")
    b.js("location.reload()")
    b.until("the draft is there", lambda: b.js("return document.getElementById('input')?.value") == "a draft")
    b.js("document.getElementById('input').select()")
    b.begin("endless")
    b.until_text(ANSWER, "slow slow slow")
    b.js("document.getElementById('input').focus()")
    b.type("for later")
    time.sleep(1.2)  # it is stored each second
    b.js("location.reload()")
    b.until_text("article.assistant .problem", "interrupted when the page was closed")
    assert "slow slow slow" in b.text(ANSWER) and b.js("return document.getElementById('input').value") == "for later"
    server.pace = 0
    mock_server.ANSWERS["endless"] = "short now"
    b.click("[data-action=regenerate]")
    b.until_text(ANSWER, "short now")
    b.idle()
    del mock_server.ANSWERS["endless"]
    assert b.text(".versions span") == "2 / 2"


def test_errors_are_sentences_and_can_be_tried_again(b, server, address):
    ready(b, address)
    for text, sentence in (("error", "No node serves blocks 12:24 any more.".lower()), ("cut", "the connection to the server ended before the answer was whole."),
                           ("busy", "all sessions are in use. try again in 7 seconds.")):
        b.say(text)
        assert b.text("article.assistant .problem").lower() == sentence, b.text("article.assistant .problem")
        if text != "busy":
            assert "slow" in b.text(ANSWER), "what had come is not kept"
    assert b.one("[data-action=regenerate]").is_enabled()
    server.down = True
    b.say("hello")
    assert "cannot be reached" in b.text("article.assistant .problem")
    b.js("document.getElementById('model').replaceChildren()")  # as when the page was opened now
    server.down = False
    b.say("again")
    assert b.text(ANSWER) == "An answer to: again" and server.asked[-1].get("model"), server.asked[-1]
    return ["429", "ERR_EMPTY_RESPONSE"]


def test_a_server_with_a_key_asks_for_it(b, server, address):
    server.key = "secret"
    b.open(address)
    b.until("the dialog opens", lambda: b.js("return document.getElementById('ask').open"))
    audit(b, "the question for the key")
    b.type("secret", Keys.ENTER)
    b.until("the models are there", lambda: b.js("return document.querySelector('#model option') !== null"))
    b.say("hello")
    assert b.text(ANSWER) == "An answer to: hello"
    assert "secret" not in b.js("return JSON.stringify(localStorage)"), "the key outlives the tab"
    return ["401"]


def test_an_edit_becomes_a_branch_beside_the_old_one(b, server, address):
    ready(b, address)
    b.say("first")
    b.say("one")
    b.all("[data-action=edit]")[-1].click()
    b.retype("two", Keys.ENTER)
    b.until_text(ANSWER, "An answer to: two")
    b.idle()
    assert bodies(server)[-1] == [("user", "first"), ("assistant", "An answer to: first"), ("user", "two")], bodies(server)[-1]
    b.click("[data-action=previous]")
    b.until_text(ANSWER, "An answer to: one")
    assert b.js("return document.activeElement.dataset.action") == "next", "the focus is lost where the first version is shown"
    b.say("after one")
    assert [c for _, c in bodies(server)[-1]] == ["first", "An answer to: first", "one", "An answer to: one", "after one"], bodies(server)[-1]
    b.js("location.reload()")
    b.until_text(ANSWER, "An answer to: after one")
    b.click("[data-action=next]")
    b.until_text(ANSWER, "An answer to: two")
    b.js("document.getElementById('input').focus()")
    b.type(Keys.ARROW_UP)
    assert b.js("return document.activeElement.value") == "two", "the arrow does not edit the last message"
    b.type(Keys.ESCAPE)
    assert b.js("return document.activeElement.dataset.action") == "edit" and len(server.asked) == 4


def test_hostile_output_stays_text(b, server, address):
    ready(b, address)
    b.say("hostile")
    b.say("think")
    for _ in range(2):
        links = b.js("return [...document.querySelectorAll('#messages a')].map((a) => a.href + ' ' + a.rel)")
        rel = " noopener noreferrer nofollow"
        assert links == [a + rel for a in ("https://evil.example/track.png", "https://good.example/a?b=c", "https://bare.example/page")], links
        made = b.js("return [...new Set([...document.querySelectorAll('#messages *')].map((e) => e.tagName.toLowerCase()))].sort()")
        allowed = "a article blockquote br button code del details div em h3 h4 h5 h6 hr li ol p pre span strong summary table tbody td th thead tr ul".split()
        assert set(made) <= set(allowed), set(made) - set(allowed)
        handlers = b.js("return [...document.querySelectorAll('#messages *')].flatMap((e) => [...e.attributes]).filter((a) => /^on|^src|^style/.test(a.name)).length")
        assert handlers == 0 and b.js("return window.hacked === undefined")
        b.js("location.reload()")
        b.until_text(ANSWER, "An answer to: think")
    began = time.monotonic()
    b.say("deep")
    assert "word" not in b.text(ANSWER) and time.monotonic() - began < browsers.WAIT_S


def test_the_policy_of_the_pages_stops_what_is_injected(b, server, address):
    ready(b, address)
    stopped = b.js("""const s = document.createElement('script'); let refused = 0;
      try { s.textContent = 'window.hacked = 1'; document.body.append(s); } catch { refused++; }
      try { document.body.insertAdjacentHTML('beforeend', '<img src=x onerror="window.hacked = 2">'); } catch { refused++; }
      return [refused, window.hacked]""")
    assert stopped == [2, None], stopped
    policy = dict(mock_server.page_headers())["Content-Security-Policy"]
    for part in ("default-src 'none'", "script-src 'self'", "style-src 'self'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"):
        assert part in policy, policy
    return ["TrustedScript", "TrustedHTML"]


def test_a_link_with_a_question_sends_nothing(b, server, address):
    ready(b, address, "/?q=delete+everything")
    time.sleep(0.3)
    assert not server.asked and b.js("return document.getElementById('input').value") == ""


def give_file(b, text):
    path = os.path.join(b.folder, "import.json")
    with open(path, "w", encoding="utf8") as f:
        f.write(text if isinstance(text, str) else json.dumps(text))
    b.js("document.getElementById('file').hidden = false")
    b.one("#file").send_keys(path)
    b.js("document.getElementById('file').hidden = true")


def test_conversations_are_renamed_searched_exported_deleted_and_imported(b, server, address):
    ready(b, address)
    b.say("apples")
    b.click("#new")
    b.say("hostile")
    b.one("#list .tools [aria-label='Rename “hostile”']").click()
    b.retype("Pears & <b>plums</b>", Keys.ENTER)
    b.until_text("#list li:first-child .open", "Pears & <b>plums</b>")
    b.js("document.getElementById('search').focus()")
    b.type("APPLES answer")
    b.until("one is found", lambda: b.js("return [...document.querySelectorAll('#list .open')].map((e) => e.textContent).join()") == "apples")
    b.retype(Keys.BACKSPACE)
    b.click("#export")
    # A browser reserves the name with an empty file, which the whole one replaces.
    exported = b.until("the file is there", lambda: [f for f in glob.glob(b.folder + "/conversations*.json") if os.path.getsize(f)])[0]
    with open(exported, encoding="utf8") as f:
        text = f.read()
    for left in (2, 1):  # each click waits for what the one before changes
        b.until("those that are left", lambda: len(b.all("#list .open")) == left)
        b.js("document.querySelector('#list .open').click()")
        b.until("it is the current one", lambda: b.js("return document.querySelector('#list li:first-child').classList.contains('current')"))
        b.js("document.querySelector('#list li.current .tools button:last-child').click()")
        b.until("the question", lambda: b.js("return document.getElementById('ask').open"))
        b.click("#ask-ok")
        b.until("it is closed", lambda: not b.js("return document.getElementById('ask').open"))
    b.until_text("#list", "No conversations yet.")
    give_file(b, text)
    b.until("both are back", lambda: len(b.all("#list .open")) == 2)
    b.click("#list li:first-child .open")
    b.until_text("#messages", "hacked=4")
    assert b.js("return window.hacked === undefined")


def test_a_broken_file_is_refused_whole(b, server, address):
    ready(b, address)
    b.say("hello")
    message = {"id": "aa", "parent": None, "role": "user", "content": "x"}
    def of(*messages, **more):
        return {"format": "swarm-conversations", "version": 1, "conversations": [{"id": "01", "title": "good", "messages": [message], "leaf": "aa"},
                {"id": "02", "title": "bad", "messages": list(messages), "leaf": None, **more}]}
    for file, why in (("{", "is not JSON"), ([], "no file that this page exported"), ({"format": "swarm-conversations", "conversations": {}}, "no file that"),
                      (of(leaf="ff"), "ends with a message that it does not have"), (of(message | {"parent": "zz"}), "answers a message that is not before it"),
                      (of(message, message), "has the id of an earlier one"), (of(message | {"role": "system"}), "is not a message"),
                      (of(message | {"id": "a\"]"}), "is not a message"), (of(id="__proto__"), "has no id"), (of(message | {"content": 5}), "is not a message")):
        give_file(b, file)
        b.until_text("#problem", why)
        assert len(b.all("#list .open")) == 1, "a part of the file was taken"
    give_file(b, of(message | {"swarm": {"hops": [None, 5, {"name": "<img src=x onerror='window.hacked=1'>"}], "failovers": "<b>"}, "role": "assistant", "extra": 1}, title=5))
    b.until("both are there", lambda: len(b.all("#list .open")) == 3)
    assert b.text("#problem") == "" and b.js("return window.hacked === undefined")


def test_settings_reach_the_server(b, server, address):
    ready(b, address)
    b.chord(Keys.CONTROL, ",")
    b.until("the settings open", lambda: b.js("return document.getElementById('settings').open"))
    audit(b, "the settings")
    b.one("#system").send_keys("You are a pirate.")
    b.one("[data-option=temperature]").send_keys("0.5")
    b.one("[data-option=seed]").send_keys("7")
    for value, valid in (("2", False), ("", True)):
        b.js("document.querySelector('[data-option=top_p]').value = arguments[0]", value)
        assert b.js("return document.querySelector('#settings form').checkValidity()") == valid
    b.click("#settings [value=ok]")
    b.say("hello")
    body = server.asked[0]
    assert body["messages"][0] == {"role": "system", "content": "You are a pirate."}, body
    assert body["temperature"] == 0.5 and body["seed"] == 7 and "top_p" not in body and body["model"] == "SmolLM2-135M-Instruct"


def test_keys_alone_are_enough(b, server, address):
    ready(b, address)
    assert b.js("return document.activeElement.id") == "input"
    b.type("markdown", Keys.ENTER)
    b.until_text(FACTS, "checked")
    b.idle()
    seen = []
    b.js("document.activeElement.blur()")
    for _ in range(40):
        b.type(Keys.TAB)
        e = b.js("const e = document.activeElement; const s = getComputedStyle(e); return [(e.getAttribute('aria-label') || e.textContent || e.id).trim(), e === document.body || s.outlineStyle !== 'none']")
        assert e[1], f"the focus is not visible on {e[0]}"
        if e[0] in seen[:1]:
            break
        seen.append(e[0])
    for name in ("Skip to the message box", "New conversation", "Search conversations", "markdown", "Rename “markdown”", "Delete “markdown”", "Export all", "Import", "Swarm map", "Theme: auto", "Settings",
                 "Shortcuts", "Edit the message: it becomes a new branch", "Copy the code", "Code, python", "Table", "Copy the answer", "Make the answer again", "Message", "Send"):
        assert name in seen, f"Tab does not reach '{name}': {seen}"
    b.chord(Keys.CONTROL, "/")
    b.until("the list of keys", lambda: b.js("return document.getElementById('help').open"))
    audit(b, "the shortcuts")
    b.type(Keys.ESCAPE)
    assert not b.js("return document.getElementById('help').open")
    b.chord(Keys.CONTROL, "k")
    b.until("the focus", lambda: b.js("return document.activeElement.id") == "search")
    b.chord(Keys.ALT, "r")
    b.until_text(".versions span", "2 / 2")
    b.idle()
    b.chord(Keys.CONTROL, Keys.SHIFT, "O")
    b.until("a new one", lambda: b.js("return document.activeElement.id === 'input' && !document.querySelector('article')"))


def test_names_and_contrast_in_both_themes(b, server, address):
    ready(b, address)
    b.say("markdown")
    b.say("think")
    b.say("error")
    for theme in ("light", "dark"):
        b.media(prefers_color_scheme=theme)
        b.open(address)
        ready(b, address)
        b.click("#list .open")
        b.until("the conversation", lambda: b.all("article"))
        b.js("document.querySelectorAll('details').forEach((d) => (d.open = true))")
        audit(b, f"the chat, {theme}")
        server.gap = True
        b.open(address + "/swarm")
        b.until_text("#gaps", "swarm-node")
        audit(b, f"the map, {theme}")
    ready(b, address)
    b.js("document.getElementById('theme').click(); document.getElementById('theme').click()")
    assert b.js("return getComputedStyle(document.documentElement).colorScheme") == "dark"
    b.js("location.reload()")
    assert b.js("return getComputedStyle(document.documentElement).colorScheme") == "dark", "the theme is forgotten"
    b.media(prefers_reduced_motion="reduce")
    b.begin("endless")
    b.until_text(ANSWER, "slow")
    assert b.js("return getComputedStyle(document.querySelector('.live > .text > :last-child'), '::after').animationName") == "none"
    b.media()


def test_a_phone_needs_no_scrolling_to_the_side(b, server, address):
    b.size(360, 640, phone=True)
    try:
        ready(b, address)
        b.say("markdown")
        b.say("hostile")
        b.say("long" + "x" * 200)
        fits(b, "the chat")
        audit(b, "the chat on a phone")
        assert not b.one("#sidebar").is_displayed()
        b.click("#menu")
        assert b.one("#sidebar").is_displayed() and b.js("return document.activeElement.id") == "new"
        fits(b, "the chat with its list")
        b.type(Keys.ESCAPE)
        assert not b.one("#sidebar").is_displayed()
        server.gap = True
        b.open(address + "/swarm")
        b.until_text("#gaps", "swarm-node")
        fits(b, "the map")
    finally:
        b.size(1200, 800)


def test_the_map_shows_coverage_nodes_and_gaps(b, server, address):
    b.open(address + "/swarm")
    b.until_text("#summary", "open sessions")
    assert "30 of 30" in b.text("#summary") and "blocks 12 to 23" in b.text("#summary"), b.text("#summary")
    assert b.js("return document.querySelectorAll('.strip li').length") == 30 and b.js("return document.querySelectorAll('.weakest').length") == 12
    row = b.js("return [...document.querySelectorAll('#nodes tbody tr')].map((r) => r.innerText.replace(/\\s+/g, ' ')).find((t) => t.includes('alpha'))")
    for part in ("alpha", "0:12", "online", "cpu", "75", "50", "3 of 64", "768 MiB", "1.5 ms", "0.1.0", "poems"):
        assert part in row, row
    assert b.js("return document.getElementById('gaps').hidden && document.getElementById('errors').hidden")
    server.gap = True  # the page goes on by itself
    b.until_text("#gaps", "swarm-node --model PATH --blocks 24:30 --join 192.0.2.7:31337")
    assert "Blocks 24 to 29 are served by no node" in b.text("#gaps") and "24 of 30" in b.text("#summary")
    assert "gamma: no reply within 2 seconds" in b.text("#errors")
    assert "<script>" in b.text("#nodes") and b.js("return window.hacked === undefined")
    assert b.js("return document.querySelectorAll('.strip .none').length") == 6
    b.js("Object.defineProperty(document, 'hidden', {get: () => true, configurable: true}); document.dispatchEvent(new Event('visibilitychange'))")
    time.sleep(0.5)
    server.gap = False
    time.sleep(4)
    assert "24 of 30" in b.text("#summary"), "a page that is not seen asks on"
    b.js("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
    b.until_text("#summary", "30 of 30")
    server.down = True
    b.until_text("#problem", "cannot be reached")
    assert "What you see is of" in b.text("#problem") and "30 of 30" in b.text("#summary")
    return ["ERR_EMPTY_RESPONSE"]


def test_the_map_works_when_fields_are_missing(b, server, address):
    shapes = [{}, {"blocks": 3, "nodes": [], "coverage": []}, {"nodes": None, "coverage": 5, "gaps": [{"blocks": "x"}], "errors": [1]}, {"nodes": [{}, None, {"blocks": "9:3", "tokens": "x", "adapters": [None, {"name": 5}]}]},
              {"coverage": [{"n_blocks": 4, "nodes_per_block": [1, 0, 0, 1]}], "nodes": [{"id": "ab", "address": "h:1"}]}]
    original = mock_server.swarm_map
    try:
        for shape in shapes:
            mock_server.swarm_map = lambda gap: shape
            b.open(address + "/swarm")
            b.until_text("#updated", "as of")
            assert b.text("#problem") == "", b.text("#problem")
            assert ("Blocks 0 to 2" in b.text("#gaps")) == (shape.get("blocks") == 3), "a model without any node has no gap"
        assert "swarm-node --model PATH --blocks 1:3 --join h:1" in b.text("#gaps"), "the page does not find the gaps by itself"
    finally:
        mock_server.swarm_map = original


def main():
    names = sys.argv[1:] or [n for n in globals() if n.startswith("test_")]
    failed = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        b = browsers.start(scratch)
        try:
            for name in names:
                server, address = mock_server.start()
                began = time.monotonic()
                try:
                    expected = globals()[name](b, server, address)
                    troubles = b.console(expected or ())
                    assert not troubles, "the console holds " + "\n  ".join(troubles)
                except Exception as error:
                    traceback.print_exc()
                    failed.append(name)
                    with contextlib.suppress(Exception):
                        print(f"{name} failed: {error}\nthe console holds {b.console()}")
                    b.size(1200, 800)
                    b.media()
                print(f"{'FAILED' if name in failed else 'ok'}  {name} ({time.monotonic() - began:.1f} s)", flush=True)
                b.open("about:blank")
                server.shutdown()
                server.server_close()
        finally:
            b.end()
    sys.exit(f"{len(failed)} failed: {', '.join(failed)}" if failed else 0)


main()
