"""One prompt and one seed: the same text from C, over HTTP and from Python, from one node and from two."""

import http.client
import json
import subprocess
import time

import pytest

import swarmnode
from conftest import BUILD, WITH_US, Nodes

PROMPT = "Once upon a time"
GIVEN = {"max_tokens": 24, "temperature": 0.9, "top_p": 0.95, "seed": 11}


@pytest.fixture(scope="module")
def real_nodes(real_path, tmp_path_factory):
    nodes = Nodes(tmp_path_factory.mktemp("nodes"))
    try:
        yield nodes.start(real_path, "0:13").start(real_path, "13:30")
    finally:
        nodes.end()


def over_http(model, join, folder):
    with open(folder / "out", "w") as out, open(folder / "err", "w") as err:
        server = subprocess.Popen([*WITH_US, BUILD / "swarm", "serve", "--model", model, "--join", join, "--listen", "127.0.0.1:0"],
                                  stdout=out, stderr=err, stdin=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 60
        while "http://" not in (folder / "out").read_text():
            assert server.poll() is None and time.monotonic() < until, (folder / "err").read_text()
            time.sleep(0.02)
        host = (folder / "out").read_text().split("http://")[1].split()[0].split("/")[0]
        connection = http.client.HTTPConnection(host, timeout=120)
        connection.request("POST", "/v1/completions", json.dumps({"prompt": PROMPT, **GIVEN}),
                           {"Content-Type": "application/json"})
        answer = json.loads(connection.getresponse().read())
        return answer["choices"][0]["text"]
    finally:
        server.kill()
        server.wait()


def test_c_http_and_python_say_the_same(real_path, real_nodes, tmp_path):
    join = real_nodes.addresses[0]
    options = [word for key, value in GIVEN.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    done = subprocess.run([BUILD / "swarm", "generate", "--model", real_path, "--join", join, "--prompt", PROMPT, "--json", *options],
                          capture_output=True, check=True, timeout=120)
    expected = json.loads(done.stdout)["text"]
    assert len(expected.split()) > 8
    model = swarmnode.Model(swarmnode.Swarm(join=join), real_path)
    assert model.generate(PROMPT, **GIVEN).text == expected
    assert "".join(model.generate(PROMPT, stream=True, **GIVEN)) == expected
    assert swarmnode.Model(None, real_path).generate(PROMPT, **GIVEN).text == expected
    assert over_http(real_path, join, tmp_path) == expected
