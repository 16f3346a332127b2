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
    for fact in ("tokens/s", "3 hops: alpha 0:12 → beta 12:24 → gamma 24:30", "1 failover survived", "41 laps saved", "118 cached tokens", "checked"):
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
        assert links == [a + rel for a in ("https://evil.example/track.png", "https://good.example/a?b=c", "https://bare.example/page", "https://good.example/?a=1&b=2")], links
        made = b.js("return [...new Set([...document.querySelectorAll('#messages *')].map((e) => e.tagName.toLowerCase()))].sort()")
        allowed = "a article blockquote br button code del details div em h3 h4 h5 h6 hr li ol p pre span strong summary table tbody td th thead tr ul".split()
        allowed += "math mfrac mi mn mo mrow mtable mtd mtext mtr".split()
        assert set(made) <= set(allowed), set(made) - set(allowed)
        handlers = b.js("return [...document.querySelectorAll('#messages *')].flatMap((e) => [...e.attributes]).filter((a) => /^on|^src|^style/.test(a.name)).length")
        assert handlers == 0 and b.js("return window.hacked === undefined")
        b.js("location.reload()")
        b.until_text(ANSWER, "An answer to: think")
    b.say("deep")
    assert "word" not in b.text(ANSWER)


def rendered(b, *texts):
    """What markdown.js makes of each text: (the text that is shown, its HTML without MathML's namespace and our classes of formulas)."""
    return b.driver.execute_async_script("""const done = arguments[1];
      import('/pages/markdown.js').then(({renderMarkdown}) => done(arguments[0].map((text) => {
        const box = document.createElement('div');
        renderMarkdown(box, text);
        return [box.textContent, box.innerHTML.replace(/ xmlns="[^"]*"/g, '')];
      })))""", texts)


# LaTeX, and what must stand in its MathML.
FORMULAS = (
    ("a", "<mi>a</mi>"), ("-x=-1", '<mo form="prefix" lspace="0" rspace="0">−</mo><mi>x</mi><mo stretchy="false">=</mo><mo form="prefix" lspace="0" rspace="0">−</mo><mn>1</mn>'),
    ("3.14+1,000", "<mn>3.14</mn><mo stretchy=\"false\">+</mo><mn>1,000</mn>"), ("x^10", "<msup><mi>x</mi><mn>1</mn></msup><mn>0</mn>"), ("x_i^{2n}", "<msubsup><mi>x</mi><mi>i</mi><mrow><mn>2</mn><mi>n</mi></mrow></msubsup>"),
    (r"\frac12", "<mfrac><mn>1</mn><mn>2</mn></mfrac>"), (r"\sqrt[3]{x}", "<mroot><mi>x</mi><mn>3</mn></mroot>"), (r"\sqrt x", "<msqrt><mi>x</mi></msqrt>"), ("f'", '<msup><mi>f</mi><mo lspace="0" rspace="0">′</mo></msup>'),
    (r"\alpha\beta\Omega", '<mi>α</mi><mi>β</mi><mi mathvariant="normal">Ω</mi>'), (r"\sum_{i=1}^n", "<munderover><mo>∑</mo>"), (r"\int_0^1", "<msubsup><mo>∫</mo><mn>0</mn><mn>1</mn></msubsup>"),
    (r"\int\limits_0^1", "<munderover><mo>∫</mo>"), (r"\lim_{x \to 0}", '<munder><mo movablelimits="true" lspace="0" rspace="0">lim</mo>'), (r"\sin x", '<mi mathvariant="normal">sin</mi><mspace width="0.1667em"></mspace><mi>x</mi>'),
    (r"\mathbb{R}\mathbf{v}\mathcal{L}\mathrm{kg}", '<mi>ℝ</mi><mi>𝐯</mi><mi>ℒ</mi><mi mathvariant="normal">kg</mi>'), (r"\text{if $x$ is}", "<mtext>if&nbsp;</mtext><mi>x</mi><mtext>&nbsp;is</mtext>"),
    (r"\left( x \right.", '<mo stretchy="true" symmetric="true" form="prefix" lspace="0" rspace="0">(</mo><mrow><mi>x</mi></mrow></mrow>'), (r"\binom nk", '<mfrac linethickness="0">'), (r"\hat{x}", '<mover accent="true"><mi>x</mi><mo stretchy="false">^</mo></mover>'),
    (r"\begin{pmatrix} a & b \\ c & d \end{pmatrix}", "<mtr><mtd><mi>a</mi></mtd><mtd><mi>b</mi></mtd></mtr><mtr><mtd><mi>c</mi></mtd><mtd><mi>d</mi></mtd></mtr>"), (r"\not=", "=\u0338"), (r"a \le b \ne c", "≤"),
    (r"\begin{cases} 1 & x \\ 0 & y \end{cases}", '<mtable class="cases"><mtr><mtd class="side-l"><mn>1</mn>'), (r"\begin{align*} a &= b \\[2pt] &= c \end{align*}", '<mtd class="side-r"></mtd><mtd class="side-l"><mo stretchy="false">=</mo><mi>c</mi>'),
    (r"\begin{array}{c|c} 1 & 2 \\ \hline 3 & 4 \end{array}", '<mtd class="side-c bar"><mn>2</mn>'), (r"a\,b\quad c", '<mspace width="0.1667em"></mspace><mi>b</mi><mspace width="1em">'), (r"50\%\ \{1\}\_", "%"), (r"a \\ b", '<mtable class="lines"'),
    (r"{a \over b}", "<mfrac><mrow><mi>a</mi></mrow><mrow><mi>b</mi></mrow></mfrac>"), (r"{\rm d}x", '<mi mathvariant="normal">d</mi></mrow><mi>x</mi>'), (r"\begin{array}{|c|} 1 \\ \hline \end{array}", '<mtr class=" last-line"><mtd class="side-c bar last-bar">'),
    (r"\xrightarrow[a]{b}", "<munderover><mo stretchy=\"true\">→</mo>"), (r"\underbrace{x}_{n}", "<munder><munder accentunder"), (r"x &lt; y", "&lt;"), (r"\substack{a \\ b}", '<mtable class="stack">'), (r"\operatorname*{argmax}_x", "<munder><mo"),
)
# Not LaTeX, or more than is known: shown as it is written.
UNKNOWN = (r"\foo{x}", r"\frac{1}", "a^b^c", r"\left( x", "}", "{", r"\begin{matrix} a \end{pmatrix}", "x # y", "50% x", "a & b", r"\text{a", r"\text{\foo}", r"\right)", r"\hspace{999em}", r"\begin{array}{x} a \end{array}", r"\constructor", r"\__proto__", "x^", r"\sqrt[3",
           r"\newcommand{\x}{y}", r"\begin{foo} a \end{foo}", r"\color{red}{x}", r"\not{ab}")


def test_formulas_are_drawn_and_never_eaten(b, server, address):
    ready(b, address)
    for open_, close, display in ((r"\(", r"\)", False), ("$", "$", False), (r"\[", r"\]", True), ("$$\n", "\n$$", True)):
        for (tex, wanted), (_, html) in zip(FORMULAS, rendered(b, *(f"So {open_}{tex}{close}." for tex, _ in FORMULAS))):
            assert wanted in html and "<math" in html and (' display="block"' in html) == display and html.endswith("</span>.</p>"), f"{open_}{tex}{close} is drawn as {html}"
        for tex, (shown, html) in zip(UNKNOWN, rendered(b, *(f"So {open_}{tex}{close}." for tex in UNKNOWN))):
            assert shown == f"So {open_}{tex}{close}." and "<math" not in html, f"{open_}{tex}{close} is shown as {shown!r}: {html}"
    plain = (r"a \\ b \, c \; d \! \{x\} \left\{ \frac{a_1}{b_1} \: \% \^ \= \)", "It costs $5 and $10, or US$5-$7, $5/$6, $5 to the US$, $$ and $$$.", "echo $HOME:$PATH $HOME/$USER", r"half \( x_1 *a* _b_", "`\\(a\\)` is code".replace("`", ""))
    for source, (shown, html) in zip(plain[:4], rendered(b, *plain[:4])):
        assert shown == source and "<math" not in html, f"{source} is shown as {html}"
    blocks = {"Text:\n\\[\na\n- b\n> c\n\\]\nand **on**": ("math", "li", "h3"), "1. One\n\\[\n+ a\n\\]\n2. Two": ("math", "ul", ""), "- item\n  $$\n  a\n  - b\n  $$": ("li math", "li li", ""),
              "\\begin{align}\na &= b\\\\\n- c\n\\end{align}": ("math", "li", ""), "| $|x|$ | \\(\\|y\\|\\) |\n| --- | --- |\n| a | $b$ |": ("th + th math", "th + th + th", ""), "**\\(a*b*c_1\\) and \\(d**e\\)**": ("strong math + *, strong math", "em", ""),
              "```math\n\\frac{1}{2}\n```": ("mfrac", "pre", ""), "> \\[\n> x\n> \\]": ("blockquote math", "br", ""), "*a \\(x*y\\) b*": ("em math", "em em", ""), "## On \\(x\\)": ("h4 math", "p", "")}
    for source, (has, *lacks) in blocks.items():
        found = b.driver.execute_async_script("""const [text, done] = arguments;
          import('/pages/markdown.js').then(({renderMarkdown}) => { const box = document.createElement('div'); renderMarkdown(box, text); window.box = box; done(box.innerHTML); })""", source)
        assert b.js("return window.box.querySelector(arguments[0]) !== null", has), f"{source} is drawn as {found}"
        for what in filter(None, lacks):
            assert not b.js("return window.box.querySelector(arguments[0]) !== null", what), f"{source} is drawn as {found}"
    code = rendered(b, r"`\(a\)` and $`x`$", "```\n\\[ a \\]\n```")
    assert "<code>\\(a\\)</code>" in code[0][1] and "<math" not in code[1][1], code


def test_markdown_escapes_and_entities(b, server, address):
    ready(b, address)
    cases = {r"1\. \*a\* \_b\_ \# \` \~ \| \$5 \<b\> a\\*b*": r"1. *a* _b_ # ` ~ | $5 <b> a\\b", "AT&amp;T &lt;b&gt; &quot;x&quot; &#39;y&#x27; &hellip; &alpha;&times;&ne; &nbsp;| &#0;&#xD800;&#9999999;": "AT&T <b> \"x\" 'y' … α×≠ \u00a0| \ufffd\ufffd\ufffd",
             "R&D; &nosuch; &; &#; & &constructor;": "R&D; &nosuch; &; &#; & &constructor;", "&amp;lt; &amp;amp;": "&lt; &amp;", "`&amp;`": "&amp;", "line\\\nbreak": "linebreak"}
    for source, (shown, html) in zip(cases, rendered(b, *cases)):
        assert shown == cases[source], f"{source} is shown as {shown!r}: {html}"


def test_half_a_formula_moves_nothing(b, server, address):
    ready(b, address)
    text = "First \\(x^2\\).\n\nThen:\n\\[\n\\frac{a_1 * b * c}{2}\n- d\n\\]\nIn a line \\(a_1*b*c\\) and $y_1*z$ end."
    seen = b.driver.execute_async_script("""const [text, done] = arguments;
      import('/pages/markdown.js').then(({renderMarkdown}) => {
        const box = document.createElement('div');
        const seen = {tags: new Set(), shrinks: [], first: new Set()};
        let maths = 0;
        for (let n = 1; n <= text.length; n++) {
          renderMarkdown(box, text.slice(0, n));
          const now = box.querySelectorAll('math').length;
          if (now < maths) seen.shrinks.push(text.slice(0, n));
          maths = now;
          for (const e of box.querySelectorAll('*')) if (!e.closest('math')) seen.tags.add(e.localName);
          if (n > 20) seen.first.add(box.firstElementChild);
        }
        done({tags: [...seen.tags].sort(), shrinks: seen.shrinks, first: seen.first.size, maths});
      })""", text)
    assert seen == {"tags": ["br", "p", "span"], "shrinks": [], "first": 1, "maths": 4}, seen


def test_formulas_without_end_or_depth_stay_text(b, server, address):
    ready(b, address)
    b.say("formulas")
    drawn, nested = b.js("""const all = [...document.querySelectorAll('#messages .formula')];
      const depth = (e) => 1 + Math.max(0, ...[...e.children].map(depth));
      return [all.map((e) => (e.querySelector('math') ? 'drawn' : e.textContent.length)), Math.max(...[...document.querySelectorAll('#messages math')].map(depth))]""")
    bounded = [i for i, how in enumerate(drawn) if how == "drawn"]
    assert bounded == [0, 2, 3, 11, 13] and nested < 80, (drawn, nested)
    lost = b.js("const t = document.querySelector('article.assistant > .text').textContent; return ['{'.repeat(7000), '\\\\frac'.repeat(1500), 'a'.repeat(9000), '$'.repeat(20001), '\\\\( '.repeat(20000)].map((s) => t.includes(s))")
    assert all(lost), lost
    # A sign $ that no other one ends is searched 2,000 characters on: after so many of them no more are.
    found = b.js("""return import('/pages/markdown.js').then(({ renderMarkdown }) => [64, 65].map((n) => {
      const div = document.createElement('div');
      renderMarkdown(div, '{$a '.repeat(n) + '$x$');
      return [div.querySelectorAll('math').length, div.textContent.length];
    }))""")
    assert found[0][0] == 1 and found[1] == [0, len('{$a ' * 65 + '$x$')], found


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


def stored(b):
    """What this page exports: {title: [(role, text, end)]}."""
    text = b.driver.execute_async_script("""const done = arguments[0];
      Promise.all([import('/pages/archive.js'), import('/pages/store.js')]).then(([archive, store]) => done(archive.exported([...store.conversations.values()])))""")
    return {c["title"]: [(m["role"], m["content"], m.get("end")) for m in c["messages"]] for c in json.loads(text)["conversations"]}


@contextlib.contextmanager
def second_tab(b):
    """Opens the address of this tab in another one. Gives two functions that show the first and the second."""
    first, address = b.driver.current_window_handle, b.js("return location.href")
    b.driver.switch_to.new_window("tab")
    second = b.driver.current_window_handle
    ready(b, address, "")
    try:
        yield lambda: b.driver.switch_to.window(first), lambda: b.driver.switch_to.window(second)
    finally:
        for handle in b.driver.window_handles:
            if handle != first:
                b.driver.switch_to.window(handle)
                b.driver.close()
        b.driver.switch_to.window(first)


def test_two_tabs_add_to_one_conversation(b, server, address):
    ready(b, address)
    b.begin("count")
    b.until_text(ANSWER, "20 21")
    with second_tab(b) as (first, second):
        b.until_text(ANSWER, "20 21")
        b.until_text(FACTS, "answering in another tab")
        length = len(b.text(ANSWER))
        b.until("the answer grows here too", lambda: len(b.text(ANSWER)) > length)
        assert not b.text("article.assistant .problem") and not b.one("#stop").is_displayed()
        for text in ("from the second tab", "and more"):
            b.say(text)
            assert b.text(ANSWER) == f"An answer to: {text}"
        first()
        b.until_text("article.user .text", "and more")
        b.click("#stop")
        b.idle()
        b.until_text(ANSWER, "and more")
        for show in (second, first, second):
            show()
            b.until("it has ended", lambda: stored(b)["count"][1][2] == "stopped")
            told = stored(b)["count"]
            assert [text for role, text, _ in told if role == "user"] == ["count", "from the second tab", "and more"], told
            assert [text for role, text, _ in told if role == "assistant"][1:] == ["An answer to: from the second tab", "An answer to: and more"], told
            assert len(told[1][1]) > 100 and mock_server.COUNT.startswith(told[1][1]), f"parts of the answer are missing: {told[1][1]}"
            b.js("location.reload()")
            b.until_text(ANSWER, "and more")


def test_an_edit_survives_what_another_tab_stores(b, server, address):
    ready(b, address)
    b.say("first")
    with second_tab(b) as (first, second):
        b.until_text(ANSWER, "first")
        b.click("[data-action=edit]")
        b.retype("half of a new ")
        first()
        b.say("elsewhere")
        second()
        b.until_text(ANSWER, "An answer to: elsewhere")
        assert b.js("return document.activeElement.matches('.editing textarea')"), "the form has lost the focus"
        b.type("question", Keys.ENTER)
        b.until_text(ANSWER, "half of a new question")
        b.idle()
        first()
        b.until("all is here", lambda: len(stored(b)["first"]) == 6)
        assert b.text(ANSWER) == "An answer to: elsewhere", "another tab turned this one to its branch"


def test_a_conversation_that_was_deleted_stays_deleted(b, server, address):
    ready(b, address)
    b.say("to be deleted")
    b.js("location.reload()")
    b.until_text(ANSWER, "to be deleted")
    with second_tab(b) as (first, second):
        b.until_text(ANSWER, "to be deleted")
        b.begin("endless")
        b.until_text(ANSWER, "slow")
        b.js("document.getElementById('input').value = 'a thought'")
        first()
        b.js("document.querySelector('#list li.current .tools button:last-child').click()")
        b.until("the question", lambda: b.js("return document.getElementById('ask').open"))
        b.click("#ask-ok")
        b.until_text("#list", "No conversations yet.")
        second()
        b.until_text("#list", "No conversations yet.")
        b.idle()
        assert server.left.wait(browsers.WAIT_S), "the answer goes on"
        assert b.js("return document.getElementById('input').value") == "a thought" and not b.all("article")
        # A page that has missed what others told writes what it knows.
        first()
        b.say("missed")
        second()
        b.until_text("#list", "missed")
        b.js("document.querySelector('#list .open').click(); BroadcastChannel.prototype.postMessage = () => {}")
        b.until_text(ANSWER, "missed")
        b.driver.execute_async_script("const done = arguments[0]; import('/pages/store.js').then((s) => s.remove([...s.conversations.keys()][0])).then(done)")
        first()
        b.js("document.getElementById('input').focus()")
        b.type("a late question", Keys.ENTER)
        b.until_text("#list", "No conversations yet.")
        b.until("the question is not lost", lambda: b.js("return document.getElementById('input').value") == "a late question")
        b.js("location.reload()")
        b.until_text("#list", "No conversations yet.")
        assert stored(b) == {}, stored(b)


def test_an_answer_of_a_tab_that_is_closed_counts_as_interrupted(b, server, address):
    ready(b, address)
    b.say("first")
    with second_tab(b) as (first, second):
        b.begin("endless")
        b.until_text(ANSWER, "slow")
        first()
        b.until_text(FACTS, "answering in another tab")
        second()
        b.driver.close()
        first()
        b.until_text("article.assistant .problem", "interrupted when the page was closed")


def test_conversations_of_earlier_versions_are_kept(b, server, address):
    b.open(address + "/pages/style.css")
    message = lambda id, parent, role, text, **more: {"id": id, "parent": parent, "role": role, "content": text, "created": 1700000000000, **more}
    old = [{"id": "0a", "title": "old", "system": "be brief", "created": 1, "changed": 2, "leaf": "a2",
            "messages": [message("ff", None, "user", "question"), message("a2", "ff", "assistant", "answer", tokens=3, swarm={"failovers": 1}), message("a1", "ff", "assistant", "other", end="stopped")]},
           {"id": "0b", "title": "older", "system": "", "created": 1, "changed": 1, "leaf": "ff", "messages": [message("ff", None, "user", "alone")]}]
    b.driver.execute_async_script("""const [old, done] = arguments;
      const opening = indexedDB.open('swarm', 1);
      opening.onupgradeneeded = () => opening.result.createObjectStore('conversations', {keyPath: 'id'});
      opening.onsuccess = () => {
        const t = opening.result.transaction('conversations', 'readwrite');
        for (const c of old) t.objectStore('conversations').put(c);
        t.oncomplete = () => { opening.result.close(); done(); };
      };""", old)
    ready(b, address, "/#0a")
    for _ in range(2):
        b.until_text(ANSWER, "answer")
        assert "1 failover survived" in b.text(FACTS) and b.text(".versions span") == "1 / 2"
        assert stored(b) == {"old": [("user", "question", None), ("assistant", "answer", None), ("assistant", "other", "stopped")], "older": [("user", "alone", None)]}, stored(b)
        b.js("location.reload()")
    b.say("more")
    assert server.asked[0]["messages"][0] == {"role": "system", "content": "be brief"} and len(bodies(server)[0]) == 4
    return ["favicon"]


def test_an_import_is_one_write_and_joins_what_is_here(b, server, address):
    ready(b, address)
    b.say("mine")
    message = {"id": "aa", "parent": None, "role": "user", "content": "x"}
    many = [{"id": f"{i:04x}", "title": f"number {i}", "messages": [message, message | {"id": "ab", "parent": "aa", "role": "assistant"}], "leaf": "ab"} for i in range(300)]
    b.js("window.writes = 0; const run = IDBDatabase.prototype.transaction; IDBDatabase.prototype.transaction = function (names, mode) { window.writes += mode === 'readwrite'; return run.apply(this, arguments); }")
    give_file(b, {"format": "swarm-conversations", "conversations": many})
    b.until("all are there", lambda: len(b.all("#list .open")) == 301)
    assert b.js("return window.writes") == 1
    more = many[0] | {"title": "older", "changed": 1, "messages": [message, message | {"id": "ac", "parent": "aa", "role": "assistant", "content": "another answer"}, message | {"id": "ab", "parent": "ac", "content": "not this"}], "leaf": "ac"}
    give_file(b, {"format": "swarm-conversations", "conversations": [more]})
    b.until("both are there", lambda: len(stored(b)["number 0"]) == 3)
    assert sorted(text for _, text, _ in stored(b)["number 0"]) == ["another answer", "x", "x"], stored(b)["number 0"]
    b.js("location.reload()")
    b.until("all are there", lambda: len(b.all("#list .open")) == 301)
    assert len(stored(b)["number 0"]) == 3
    b.driver.execute_async_script("""const done = arguments[0]; Promise.all([import('/pages/archive.js'), import('/pages/store.js')])
      .then(([archive, store]) => archive.importText(archive.exported([...store.conversations.values()]))).then(done)""")


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


def test_an_answer_without_text_leaves_one_question(b, server, address):
    ready(b, address)
    b.begin("wait")
    b.until("the server was asked", lambda: server.asked)
    b.click("#stop")
    b.idle()
    assert "You stopped this answer." in b.text("article.assistant .problem")
    b.say("and this")
    assert bodies(server)[1] == [("user", "wait\n\nand this")], bodies(server)[1]
    b.say("more")
    assert bodies(server)[2] == [("user", "wait\n\nand this"), ("assistant", "An answer to: and this"), ("user", "more")], bodies(server)[2]


def test_settings_reach_the_server(b, server, address):
    ready(b, address)
    b.chord(Keys.CONTROL, ",")
    b.until("the settings open", lambda: b.js("return document.getElementById('settings').open"))
    audit(b, "the settings")
    shown = b.js("return Object.fromEntries([...document.querySelectorAll('[data-option]')].map((f) => [f.dataset.option, f.placeholder]).filter(([, v]) => v))")
    assert shown == {"temperature": "0.7", "top_p": "0.95", "top_k": "40"}, shown
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
    assert body["temperature"] == 0.5 and body["seed"] == 7 and not {"top_p", "top_k", "min_p", "repeat_penalty"} & set(body) and body["model"] == "SmolLM2-135M-Instruct"


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


def is_at_end(b):
    return b.js("const m = document.querySelector('main'); return m.scrollHeight - m.scrollTop - m.clientHeight <= 2")


def test_a_phone_needs_no_scrolling_to_the_side(b, server, address):
    server.pace = 0.002
    for width, height in ((360, 640), (390, 844)):
        b.size(width, height, phone=True)
        try:
            ready(b, address)
            b.say("markdown")
            b.say("hostile")
            b.say("formula")
            b.say("long" + "x" * 200)
            fits(b, "the chat")
            audit(b, "the chat on a phone")
            rows = b.js("return [...new Set([...document.querySelectorAll('header > *, #more > *')].filter((e) => e.checkVisibility() && e.getBoundingClientRect().height).map((e) => { const r = e.getBoundingClientRect(); return Math.round((r.top + r.bottom) / 20); }))]")
            assert len(rows) == 1 and b.one("header").size["height"] < 64, f"the header has {len(rows)} rows, {b.one('header').size}"
            server.gap = True
            b.open(address + "/swarm")
            b.until_text("#gaps", "swarm-node")
            fits(b, "the map")
        finally:
            b.size(1200, 800)


def test_the_view_follows_an_answer_until_a_reader_scrolls(b, server, address):
    b.size(360, 640, phone=True)
    server.pace = 0.002
    try:
        ready(b, address)
        for text in ("markdown", "formula", "long", "think", "hostile"):
            b.say(text)
            b.until(f"the end of '{text}' is seen", lambda: is_at_end(b))
            b.until("its last line is seen", lambda: b.js("return document.querySelector('article:last-of-type .actions').getBoundingClientRect().bottom <= document.querySelector('main').getBoundingClientRect().bottom + 1"))
        b.begin("endless")
        b.until_text(ANSWER, "slow slow")
        b.js("document.querySelector('main').scrollTop = 0")
        b.until("the answer goes on", lambda: len(b.text(ANSWER)) > 60)
        assert b.js("return document.querySelector('main').scrollTop") == 0, "the view is torn away from a reader"

        def follows_again():
            """Of a busy machine the page may hear of the scrolling when the end is further away: then a reader scrolls once more."""
            b.js("document.querySelector('main').scrollTop = 1e6")
            length = len(b.text(ANSWER)) + 300
            b.until("the answer goes on", lambda: len(b.text(ANSWER)) > length)
            return is_at_end(b)

        b.until("the end is seen again", follows_again)
        b.click("#stop")
        b.idle()
        b.until("the end is seen", lambda: is_at_end(b))
        b.say("think")
        top = b.js("return document.querySelector('main').scrollTop")
        b.click(".reasoning summary")
        b.js("return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        assert b.js("return document.querySelector('main').scrollTop") == top, "the view leaves a fold that was opened"
    finally:
        b.size(1200, 800)


def test_a_phone_closes_its_list_without_a_choice(b, server, address):
    b.size(360, 640, phone=True)
    try:
        ready(b, address)
        b.say("one")
        sidebar, focus = b.one("#sidebar"), lambda: b.js("return document.activeElement.id")
        assert not sidebar.is_displayed()
        touch = lambda x, y: [b.driver.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points}) for kind, points in (("touchStart", [{"x": x, "y": y}]), ("touchEnd", []))]
        for close in (lambda: b.click("#close-menu"), lambda: b.type(Keys.ESCAPE), lambda: touch(345, 300)):
            b.click("#menu")
            b.until("the list", sidebar.is_displayed)
            assert focus() == "close-menu" and b.one("#menu").get_attribute("aria-expanded") == "true"
            audit(b, "the list on a phone")
            fits(b, "the chat with its list")
            for _ in range(12):
                b.type(Keys.TAB)
                assert b.js("return document.activeElement === document.body || document.activeElement.closest('#sidebar, .skip') !== null"), f"Tab leaves the list to {focus()}"
            close()
            b.until("it is closed", lambda: not sidebar.is_displayed())
            assert focus() == "menu" and b.text(ANSWER) == "An answer to: one"
        b.begin("endless")
        b.until_text(ANSWER, "slow")
        b.click("#menu")
        b.type(Keys.ESCAPE)
        assert not sidebar.is_displayed() and b.one("#stop").is_displayed(), "Escape ends the answer and not the list"
        b.type(Keys.ESCAPE)
        b.idle()
        b.click("#open-more")
        b.until("the other buttons", lambda: b.one("#theme").is_displayed())
        audit(b, "the other buttons")
        fits(b, "the other buttons")
        b.type(Keys.ESCAPE)
        b.until("they are closed", lambda: not b.one("#theme").is_displayed())
        b.click("#open-more")
        b.click("#open-settings")
        b.until("the settings", lambda: b.js("return document.getElementById('settings').open"))
        fits(b, "the settings")
        b.type(Keys.ESCAPE)
        b.until("the focus is in the page", lambda: focus() == "open-more")
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


def test_the_map_of_a_node_says_what_it_gave(b, server, address):
    original = mock_server.swarm_map
    given = {"hours": 26.4, "tokens": 412876, "sessions": 311, "weights_bytes": 3 << 30, "relayed_bytes": 0}
    try:
        for shape, says in ((given, "This node gave since its start: 412,876 tokens of 311 sessions in 26.4 hours, 3 GiB of the model's files."),
                            ({"tokens": "x", "hours": None}, "This node gave since its start: – tokens of – sessions in – hours."), (7, "")):
            mock_server.swarm_map = lambda gap: original(gap) | {"self": "ab", "given": shape}
            b.open(address + "/swarm")
            b.until_text("#updated", "as of")
            assert b.text("#given") == says, b.text("#given")
    finally:
        mock_server.swarm_map = original


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
