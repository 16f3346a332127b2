"""A Chromium of Debian, driven by its chromedriver: what the tests of the pages share."""
import contextlib
import json
import os
import time

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

WAIT_S = 60  # a limit that even a slow machine does not reach


def start(folder):
    options = Options()
    options.binary_location = "/usr/bin/chromium"
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1200,800", "--lang=en", "--no-first-run",
                     "--disable-background-networking", "--disable-component-update", "--disable-extensions", f"--user-data-dir={folder}/profile"):
        options.add_argument(argument)
    options.add_experimental_option("prefs", {"download.default_directory": folder})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return Browser(webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver")), folder)


class Browser:
    def __init__(self, driver, folder):
        self.driver, self.folder, self.troubles = driver, folder, []

    def open(self, address):
        self.driver.get(address)

    def js(self, code, *arguments):
        return self.driver.execute_script(code, *arguments)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector):
        found = self.all(selector)
        assert found, f"{selector} is not there: {self.text('body')[:500]}"
        return found[-1]

    def text(self, selector):
        """The text of the last element; "" where there is none, or where it is drawn anew just now."""
        return self.js("return [...document.querySelectorAll(arguments[0])].at(-1)?.innerText ?? ''", selector)

    def click(self, selector):
        self.one(selector).click()

    def until(self, what, condition):
        end = time.monotonic() + WAIT_S
        while not (value := condition()):
            assert time.monotonic() < end, f"the page shows: {self.text('body')[:800]}\n{what}: not within {WAIT_S} seconds"
            time.sleep(0.03)
        return value

    def until_text(self, selector, wanted):
        self.until(f"'{wanted}' in {selector}", lambda: wanted in self.text(selector))

    def type(self, *keys):
        """Keys to what has the focus."""
        webdriver.ActionChains(self.driver).send_keys(*keys).perform()

    def chord(self, *keys):
        chain = webdriver.ActionChains(self.driver)
        for key in keys[:-1]:
            chain.key_down(key)
        chain.send_keys(keys[-1])
        for key in keys[:-1]:
            chain.key_up(key)
        chain.perform()

    def retype(self, *keys):
        """Keys in place of all that stands in what has the focus."""
        self.chord(Keys.CONTROL, "a")
        self.type(*keys)

    def say(self, text):
        """Sends a message, and waits until it has its answer, whole or not."""
        self.begin(text)
        self.idle()

    def begin(self, text):
        before = len(self.all("article.assistant"))
        self.js("document.getElementById('input').focus()")
        self.driver.find_element(By.ID, "input").send_keys(text + "\n")
        self.until("an answer begins", lambda: len(self.all("article.assistant")) > before)

    def idle(self):
        self.until("the answer ends", lambda: self.js("return !document.getElementById('send').hidden && document.getElementById('stop').hidden"))

    def size(self, width, height, phone=False):
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone})

    def media(self, **features):
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": k.replace("_", "-"), "value": v} for k, v in features.items()]})

    def picture(self, path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self.driver.save_screenshot(path)

    def console(self, expected=()):
        """Errors of the console so far (violations of the policy are among them), without those that hold an expected text."""
        log = [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
        return [line for line in log if not any(e in line for e in expected)]

    def end(self):
        with contextlib.suppress(Exception):
            self.driver.quit()


# What a screen reader would say of a control, and what each text contrasts with. Runs in the page.
AUDIT = r"""
const seen = (e) => e.checkVisibility({opacityProperty: true, visibilityProperty: true}) && !e.closest('.offscreen, .skip');
const name = (e) => {
  const by = e.getAttribute('aria-labelledby');
  if (by) return by.split(' ').map((id) => document.getElementById(id)?.textContent || '').join(' ').trim();
  return (e.getAttribute('aria-label') || [...(e.labels || [])].map((l) => l.textContent).join(' ') || (/^(INPUT|TEXTAREA|SELECT)$/.test(e.tagName) ? '' : e.textContent)).trim();
};
const rgb = (c) => { const m = c.match(/[\d.]+/g).map(Number); return c.startsWith('color(') ? [...m.slice(-4, -1).map((v) => v * 255), m.at(-1)] : [m[0], m[1], m[2], m[3] ?? 1]; };
const luminance = (c) => { const [r, g, b] = c.map((v) => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b; };
const backOf = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c[3] > 0.99) return c; } return rgb(getComputedStyle(document.body).backgroundColor); };
const problems = [];
for (const e of document.querySelectorAll('a[href], button, input, select, textarea, summary, dialog, [role=region], nav, aside, article'))
  if (seen(e) && e.type !== 'file' && !name(e)) problems.push('no name: ' + e.outerHTML.slice(0, 120));
const ids = [...document.querySelectorAll('[id]')].map((e) => e.id);
for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) problems.push('two elements have the id ' + id);
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let t; (t = walker.nextNode()); ) {
  const e = t.parentElement;
  if (!t.data.trim() || !seen(e) || e.disabled || e.closest('script, option')) continue;
  const style = getComputedStyle(e);
  const [a, b] = [luminance(rgb(style.color).slice(0, 3)), luminance(backOf(e).slice(0, 3))];
  const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
  const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && Number(style.fontWeight) >= 700);
  if (ratio < (large ? 3 : 4.5)) problems.push(`contrast ${ratio.toFixed(2)}: "${t.data.trim().slice(0, 40)}" ${style.color} on ${backOf(e)}`);
}
for (const e of document.querySelectorAll('button, a[href], input, select, textarea, summary')) {
  if (!seen(e) || getComputedStyle(e).display === 'inline') continue;
  const box = e.getBoundingClientRect();
  if (box.width < 24 || box.height < 24) problems.push(`smaller than 24 pixels: ${e.outerHTML.slice(0, 100)} ${box.width}x${box.height}`);
}
if (!document.documentElement.lang) problems.push('the page has no language');
if (document.querySelectorAll('h1').length !== 1) problems.push('not one h1');
if (document.querySelectorAll('main').length !== 1) problems.push('not one main');
return [...new Set(problems)];
"""
