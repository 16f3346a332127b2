"""`swarm chat` as a person meets it: chat_at_terminal.py PROGRAM FOLDER CASE...

PROGRAM is scripted_chat, whose answers follow the script of tests/scripted/swarm.c. Each case is a function below."""
import json
import os
import re
import signal
import stat
import sys

from terminal import Terminal, check

program, folder = sys.argv[1:3]
STATE = os.path.join(folder, "state")
HISTORY = os.path.join(STATE, "swarm", "history")
PASTE, PASTE_END = "\x1b[200~", "\x1b[201~"


def chat(*options, **env):
    os.makedirs(STATE, exist_ok=True)
    t = Terminal([program, "--model", "script", "--local", "all", *options], {"XDG_STATE_HOME": STATE, **env})
    t.prompt()
    return t


def leave(t):
    t.send("/quit\r")
    t.end()


def make(path):
    with open(path, "w", encoding="utf8"):
        pass


def summary(text):
    data = text.encode()
    return f"{len(data)} bytes, sum {sum(data)}"


def editing():
    t = chat()
    t.enter("helo\x1b[Dl", summary("hello"))  # a letter before the last one
    t.enter("abc xyz\x17def\x01>", summary(">abc def"))  # Ctrl-W, Ctrl-A
    t.enter("\u00e4\u20ac\U0001f600x\x7f", summary("\u00e4\u20ac\U0001f600"))
    t.send("kept\x0c")
    t.expect("\x1b[H\x1b[2J", "kept")  # Ctrl-L clears the screen, not the line
    t.enter("", summary("kept"))
    t.enter("")
    t.send("\x04")
    t.end()
    check(t.text.endswith(b"\x1b[?2004l"), "the terminal is left in bracketed paste mode")


def several_lines():
    t = chat()
    t.enter("one\x1b\rtwo", summary("one\ntwo"))
    t.send('"""\rfirst\r\rlast\r')
    t.enter('"""', summary("first\n\nlast"))
    t.enter('"""quoted"""', summary("quoted"))
    leave(t)


def pastes():
    t = chat()
    text = "".join(f"line {i} of a long paste, \u00e4\u20ac\U0001f600\n" for i in range(30000))
    check(len(text.encode()) > 1 << 20, "the paste is too small")
    t.send("Look: " + PASTE + text.replace("\n", "\r") + PASTE_END)
    t.expect("[pasted text 1: 30001 lines]")
    t.enter(" What is it?", summary(f"Look: {text} What is it?"))
    t.enter("x" * 7004, summary("x" * 7004))
    t.enter(PASTE + "y" * 100000 + PASTE_END, summary("y" * 100000))
    t.enter(PASTE + "a\rb\tc" + PASTE_END + "\x7fd", summary("a\nb\td"))
    leave(t)


def history():
    t = chat()
    t.enter("first message", summary("first message"))
    t.enter("two\x1b\rlines", summary("two\nlines"))
    t.send("\x04")
    t.end()
    check(stat.S_IMODE(os.stat(HISTORY).st_mode) == 0o600, "others can read the history")
    t = chat()
    t.enter("\x1b[A", summary("two\nlines"))
    t.enter("\x1b[A\x1b[A", summary("first message"))
    t.enter("third", summary("third"))
    t.send("\x12fir")  # Ctrl-R
    t.expect("bck:", "first message")
    t.enter("", summary("first message"))
    leave(t)


def typed_ahead():
    t = chat()
    go_on = os.path.join(folder, "go_on")
    t.begin(f"wait {go_on}")
    t.send("next \x1b[Aquestion\r\r")
    make(go_on)
    t.expect("ready")
    t.expect(t.mark, "next question")  # text of the line, and no turn
    t.enter("!", summary("next question!"))
    check(t.text.count(b" bytes, sum ") == 1, "what was typed ahead became a turn")
    leave(t)


def interrupt(t, *texts):
    """Types Ctrl-C, and awaits the texts and the prompt."""
    t.send("\x03")
    t.expect(*texts)
    t.prompt()


def stopping():
    t = chat()
    t.begin("endless", "word word")
    interrupt(t, "[stopped after ", " tokens: they stay in the conversation, /undo removes the turn]\r\n")
    t.enter("/stats", " tokens, 4 of them known")
    shown = t.enter("turns", "|turns")
    check(b"endless|word word" in shown, f"the stopped answer is not in the conversation: {shown!r}")
    t.begin("stuck")
    interrupt(t, "[stopped before the answer began: the message is not in the conversation]")
    t.begin("prefill 100000", "prompt: ", " of 10000000 tokens, 0 %, ", " left")
    interrupt(t, "[stopped before")
    check(b"first token after 0" not in t.enter("/stats", "conversation"), "figures of an answer that never began")
    shown = t.enter("turns", "|turns")
    check(b"stuck" not in shown and b"prefill" not in shown, f"messages without an answer stay: {shown!r}")
    t.send("dropped line")
    t.expect("dropped line")
    interrupt(t, "^C\r\n")
    interrupt(t, "[Ctrl-C again, /quit or Ctrl-D ends the chat]")
    t.enter("still here", summary("still here"))
    interrupt(t, "[Ctrl-C again")
    t.send("\x03")
    t.end(130)


def commands():
    file = os.path.join(folder, "talk.json")
    t = chat("--system", "Be brief.")
    t.enter("/help", "/reset", "/system", "/set", "/save", "/load", "/retry", "/undo", "/model", "/stats", "/quit")
    t.enter("/rest", "[there is no command /rest; did you mean /reset?]")
    t.enter("/save", "[/save needs an argument: /save FILE]")
    t.enter("/undo", "[there is no turn to undo]")
    t.enter("/retry", "[there is no turn to answer again]")
    t.enter("say one", "one")
    t.enter("say two", "two")
    t.enter("/save " + file, "[2 turns are in ")
    check(stat.S_IMODE(os.stat(file).st_mode) == 0o600, "others can read a saved conversation")
    t.enter("/undo", "[removed: say two]")
    t.enter("turns", "Be brief.|say one|one|turns")
    t.enter("/retry", "Be brief.|say one|one|turns")
    t.enter("/save " + file, "[2 turns are in ")  # its own file
    t.enter("/system none", "[the system message is gone]")
    t.enter("/system Be kind.", "[the system message is set]")
    t.enter("/system", "Be kind.")
    t.enter("/system Be kind.\x1b\rAlways.", "[the system message is set]")
    t.enter("/system", "Be kind.\r\nAlways.")
    t.enter("/system Be kind.", "[the system message is set]")
    t.enter("/reset", "[a new conversation; the system message stays]")
    t.enter("turns", "Be kind.|turns")
    t.enter("fail", "[no node serves blocks 0:1 of the script]")
    t.enter("/retry", "Be kind.|turns")  # the turn that failed is gone
    t.enter("/load " + file + "x", "No such file")
    t.enter("/load " + file, "[2 turns of ")
    t.enter("turns", "Be brief.|say one|one|turns|Be brief.|say one|one|turns|turns")
    t.enter("/model", "Script")
    t.enter("/stats", "last answer", "tok/s", "blocks 0:1", "1.5 ms compute")
    for text in ("/x/y is a path", "/* a comment */", "/"):
        t.enter(text, summary(text))
    t.send("/exit\r")
    t.end()
    check([m["role"] for m in json.load(open(file))["messages"]] == ["system", "user", "assistant", "user", "assistant"],
          "the saved conversation has other messages")
    t = chat()
    t.enter("/save " + file, "exists: choose another name")
    leave(t)


def sampling():
    t = chat()
    t.enter("sampling", "temperature=0.7", "top-p=0.95")
    t.enter("/set", "temperature", "0.7", "seed", "random")
    t.enter("/set temprature 1", "did you mean temperature?")
    t.enter("/set temperature warm", "[temperature: 'warm' must be a number")
    t.enter("/set temperature 0.2")
    t.enter("/set max_tokens = 17")
    t.enter("sampling", "max-tokens=17 temperature=0.2")
    leave(t)
    t = chat("--temperature", "0", SCRIPT_SAMPLING="1")
    t.enter("sampling", "max-tokens=0 temperature=0 top-k=20 top-p=0.95")
    leave(t)
    t = chat(SCRIPT_SAMPLING="1")
    t.enter("sampling", "temperature=0.3 top-k=20")
    leave(t)


def completion():
    t = chat()
    t.send("/re\t\t")
    t.expect("/reset  /retry\r\n")
    t.send("s\t")
    t.expect("/reset")
    t.enter("", "[a new conversation]")
    t.send("/set te\t")
    t.expect("mperature ")
    t.enter("0.4")
    t.enter("sampling", "temperature=0.4")
    with open(os.path.join(folder, "completed.json"), "w", encoding="utf8") as file:
        file.write("[]")
    t.send(f"/load {folder}/compl\t")
    t.expect("eted.json")
    t.enter("", "[0 turns of ")
    leave(t)


ESCAPES = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


def styles():
    script = r"say # Title\nSome **bold**, *italic* and `code`.\n\n- one\n```c\nint a;\n```\nend"
    t = chat()
    shown = t.enter(script, "Title", "end", "tok/s]")
    for styled in (b"\x1b[1m\x1b[4mTitle\x1b[0m", b"\x1b[1mbold\x1b[0m", b"\x1b[3mitalic\x1b[0m", b"\x1b[36mcode\x1b[0m",
                   b"\xe2\x80\xa2 one", b"\x1b[36mint a;\x1b[0m"):
        check(styled in shown, f"{styled!r} is missing in {shown!r}")
    shown = t.enter(r"say <think>hm **so**</think>\n\nFour.", "Four.", "tok/s]")
    check(b"\x1b[2mhm **so**\x1b[0m\r\n\r\nFour." in shown, f"the thought is not dimmed: {shown!r}")
    shown = t.enter("say <|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Four.", "Four.",
                    "tok/s]")
    check(b"\x1b[2mhm\x1b[0m\r\n\r\nFour." in shown, f"the channel is not dimmed: {shown!r}")
    leave(t)
    for env in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        t = chat(**env)
        t.begin(script)
        shown = t.expect("# Title\r\nSome **bold**, *italic* and `code`.\r\n\r\n- one\r\n```c\r\nint a;\r\n```\r\nend\r\n")
        check(b"\x1b" not in shown, f"there are styles: {shown!r}")
        t.prompt()
        t.enter("say <think>hm</think>Four.", "[thinking]\r\nhm\r\n\r\n[answer]\r\nFour.")
        leave(t)


def harmless():
    """What a model writes cannot act on the terminal, whether styles are on or off."""
    for env in ({}, {"NO_COLOR": "1"}):
        t = chat(**env)
        shown = t.enter(r"say **\e[31m \e]0;owned **`\e[2J` <think>\e[A", "owned", "tok/s]")
        shown = shown.split(b"\r\n", 1)[1].split(b"\r\n[")[0]
        left = re.sub(rb"\x1b\[([0-4]|36)?m", b"", shown)
        check(b"\x1b" not in left and left.count(b"\xef\xbf\xbd") == 4, f"the terminal received {shown!r}")
        shown = t.enter(r"say <think>\e[31m</think>x", "tok/s]")
        check(b"\x1b[31m" not in shown, f"the terminal received {shown!r}")
        leave(t)
    for ending in "ab":  # names of files that others made
        make(os.path.join(folder, f"named\x1b]0;owned\x07{ending}"))
    t = chat()
    t.send(f"/load {folder}/nam\t\t")
    shown = t.expect("owned", "owned", "owned")  # in the line, and in the list
    check(b"\x1b]0;" not in shown, f"the terminal received {shown!r}")
    t.send("\x15")  # the line is dropped
    leave(t)


def log_lines():
    t = chat()
    shown = t.enter("noise one two three", "tok/s]")
    answer = shown.index(b"one two three")
    check(answer < shown.index(b"noise n=6") and shown.count(b"warn  noise") == 13, f"log lines break the answer: {shown!r}")
    leave(t)
    t = chat(SCRIPT_NOISE="1")
    t.send("unfinished")
    shown = t.expect("warn  idle n=1\r\n", t.mark, "unfinished")  # above the line, which is shown again
    t.enter("", summary("unfinished"))
    leave(t)


def signals():
    for answering, number in ((False, signal.SIGTERM), (True, signal.SIGHUP)):
        t = chat()
        check(not t.echoes(), "keys are echoed")
        if answering:
            t.begin("stuck")
        os.kill(t.pid, number)
        t.expect("\x1b[?2004l")
        t.end(-number)


def suspending():
    os.makedirs(STATE, exist_ok=True)
    t = Terminal(["bash", "--norc", "-i"], {"XDG_STATE_HOME": STATE, "PS1": "shell: "})
    t.expect("shell: ")
    t.send(f"{program} --model script --local all\r")
    t.prompt()
    t.send("kept text")
    t.expect("kept text")
    t.send("\x1a")
    t.expect("\x1b[?2004l", "Stopped", "shell: ")
    t.send("fg\r")
    t.expect("\x1b[?2004h", t.mark, "kept text")
    t.enter("", summary("kept text"))
    go_on = os.path.join(folder, "go_on_again")
    t.begin(f"wait {go_on}")
    t.send("\x1a")
    t.expect("Stopped", "shell: ")
    t.send("fg\r")
    t.expect("\x1b[?2004h")
    make(go_on)
    t.expect("ready")
    t.prompt()
    check(not t.echoes(), "keys are echoed after fg")
    t.send("/quit\r")
    t.expect("shell: ")
    t.send("exit\r")
    t.end()


for case in sys.argv[3:]:
    try:
        globals()[case]()
    except SystemExit as why:
        sys.exit(f"{case}: {why}")
