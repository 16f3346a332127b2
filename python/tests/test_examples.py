"""The programs of examples/python run, and say what is true."""

import subprocess
import sys

from conftest import BUILD, ROOT

EXAMPLES = ROOT / "examples/python"


def run(name, *arguments, lines=""):
    done = subprocess.run([sys.executable, EXAMPLES / name, *arguments], input=lines, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_chat_has_the_answers_of_swarm_chat(real_path):
    turns = "Name one colour.\nAnd another one?\n"
    expected = subprocess.run([BUILD / "swarm", "chat", "--model", real_path, "--local", "all", "--temperature", "0",
                               "--max-tokens", "200"], input=turns, capture_output=True, text=True, check=True, timeout=120).stdout
    assert run("chat.py", real_path, lines=turns).split() == expected.split()


def test_probe_ends_with_the_next_token(real, real_path):
    out = run("probe.py", real_path, "The capital of France is").splitlines()
    assert len(out) == real.blocks
    assert out[-1].endswith(repr(real.generate("The capital of France is", max_tokens=1).text))
