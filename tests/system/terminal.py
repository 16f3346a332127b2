"""A program at a pseudoterminal, for tests: what it shows is awaited, never a time. Used by test_chat.sh."""
import fcntl
import os
import pty
import select
import struct
import sys
import termios
import time

LIMIT_S = float(os.environ.get("LIMIT_S", 60))  # for anything that is awaited


class Terminal:
    """Runs a command with the variables of env beside those of this process; what it shows comes in self.text."""

    def __init__(self, command, env=None, columns=80):
        self.pid, self.fd = pty.fork()
        if not self.pid:
            os.environ.pop("NO_COLOR", None)
            os.environ.update({"TERM": "xterm", "LANG": "C.UTF-8", **(env or {})})
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
            os.execvp(command[0], command)
        self.mark = b"> " if env and ("NO_COLOR" in env or "TERM" in env) else b">\x1b[0m "  # of the prompt
        self.text = b""
        self.seen = 0

    def read(self):
        try:
            data = os.read(self.fd, 65536)
        except OSError:  # the last process at the terminal has ended
            data = b""
        self.text += data
        return data

    def send(self, text):
        data = text.encode() if isinstance(text, str) else text
        while data:  # reads meanwhile, because a terminal that is not read stops its writer
            readable, writable, _ = select.select([self.fd], [self.fd], [], LIMIT_S)
            if readable and not self.read():
                sys.exit(f"the program ended while it was sent {data[:40]!r}; it showed {self.text[-500:]!r}")
            if writable:
                data = data[os.write(self.fd, data[:1024]) :]
            if not readable and not writable:
                sys.exit(f"the program does not read {data[:40]!r}")

    def expect(self, *texts):
        """Waits until each of the texts is shown, one after another, behind what was awaited before. Returns what came with
        them."""
        begin = self.seen
        for text in texts:
            data = text.encode() if isinstance(text, str) else text
            until = time.monotonic() + LIMIT_S
            while (at := self.text.find(data, self.seen)) < 0:
                left = until - time.monotonic()
                if left < 0 or not select.select([self.fd], [], [], left)[0] or not self.read():
                    sys.exit(f"{data!r} is not shown; behind what was awaited before stands {self.text[self.seen:][-1500:]!r}")
            self.seen = at + len(data)
        return self.text[begin : self.seen]

    def prompt(self):
        return self.expect(self.mark)

    def begin(self, line, *texts):
        """Sends a line and awaits the texts behind it. Returns what came with them."""
        self.send(line + "\r")
        return self.expect("\r\n", *texts)

    def enter(self, line, *texts):
        """The same, and awaits the next prompt."""
        return self.begin(line, *texts) + self.prompt()

    def end(self, code=0):
        """Awaits the end of the program and its exit code; a negative one is a signal."""
        while self.read():
            pass
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        if status != code:
            sys.exit(f"the program ended with {status}, not {code}; it showed {self.text[-500:]!r}")

    def echoes(self):
        return bool(termios.tcgetattr(self.fd)[3] & termios.ECHO)


def check(condition, what):
    if not condition:
        sys.exit(what)
