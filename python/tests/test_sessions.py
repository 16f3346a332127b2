"""Connections, models and sessions, compared with the programs; how they end."""

import asyncio
import contextlib
import gc
import json
import logging
import os
import pickle
import re
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import swarmnode
from conftest import BUILD, F32, KV, ROOT, Nodes
from swarmnode import _native

TEXT = swarmnode.EventKind.TEXT
IDS = [1, 17, 42, 99, 3, 250, 11, 7]


def swarm_generate(model, *options):
    out = subprocess.run([BUILD / "swarm", "generate", *F32, "--model", model, "--local", "all", "--json", *options],
                         capture_output=True, check=True, timeout=120)
    return json.loads(out.stdout)


def test_every_declaration_of_the_header_is_bound():
    subprocess.run([sys.executable, ROOT / "scripts/python_binding.py", "--check"], check=True)


def test_the_swarm_tells_its_nodes_and_models(swarm):
    assert [n["blocks"] for n in swarm.status()["nodes"]] == ["0:2", "2:4"]
    (model,) = swarm.models()
    assert (model["blocks"], model["nodes"], model["gaps"]) == (4, ["node0", "node1"], [])


def test_a_generation_has_the_ids_of_the_program(tiny, tiny_here, tiny_path, tmp_path):
    (tmp_path / "ids").write_text(json.dumps(IDS))
    expected = swarm_generate(tiny_path, "--ids-file", tmp_path / "ids", "--max-tokens", "20", "--ignore-eos",
                              "--temperature", "0.9", "--seed", "5")
    for model in (tiny, tiny_here):
        made = model.generate(IDS, max_tokens=20, ignore_eos=True, temperature=0.9, seed=5)
        assert (made.ids, made.text, made.finish_reason) == (expected["ids"], expected["text"], "length")
        assert "".join(model.generate(IDS, stream=True, max_tokens=20, ignore_eos=True, temperature=0.9, seed=5)) == made.text


def test_steps_rewinds_and_samples_are_what_generation_does(tiny):
    made = tiny.generate(IDS, max_tokens=6, ignore_eos=True)
    with tiny.session(max_length=64) as session:
        session.prefill(IDS[:-1])
        logits = session.step(IDS[-1])
        assert logits.shape == (tiny.vocab,) and session.position == len(IDS)
        for expected in made.ids:
            token = session.sample()
            assert token == expected == int(logits.argmax())
            logits = session.step(token)
        assert session.tokens.tolist() == IDS + made.ids
        session.position = len(IDS) - 1
        again = session.step([IDS[-1], *made.ids])
        assert np.array_equal(again[-1], logits)
        with pytest.raises(swarmnode.Refused):
            session.position = 1000


def test_a_session_continues_from_its_file(tiny, tmp_path):
    (tmp_path / "key").write_bytes(os.urandom(32))
    (tmp_path / "key").chmod(0o600)
    with tiny.session() as session:
        session.prefill(IDS)
        session.save(tmp_path / "file", tmp_path / "key", b"turn\0three")
        expected = session.generate(max_tokens=5, ignore_eos=True).ids
    with tiny.session() as session:
        assert session.extra is None
        session.load(tmp_path / "file", tmp_path / "key")
        assert session.extra == b"turn\0three" and session.tokens.tolist() == IDS
        assert session.generate(max_tokens=5, ignore_eos=True).ids == expected


def test_the_tokenizer_is_the_models(tiny):
    t = tiny.tokenizer
    ids = t.encode("hello there", begins=False)
    assert t.decode(ids) == "hello there"
    assert t.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "user:hi;>"
    assert t.decode(t.apply_chat_template([{"role": "user", "content": "hi"}])).lstrip() == "user:hi;>"
    assert t.encode("a\0b") and t.read_answer(ids) == {"role": "assistant", "content": "hello there"}


def test_logits_can_be_masked_and_events_listened_to(tiny):
    events = []
    with tiny.session(on_event=events.append) as session:
        session.on_logits(lambda ids, logits: logits.__setitem__(slice(0, 300), -np.inf))
        made = session.generate(IDS, max_tokens=5, ignore_eos=True, logprobs=2)
        assert min(made.ids) >= 300
        tokens = [e for e in events if e.kind == swarmnode.EventKind.TOKEN]
        assert [int(e.numbers["id"]) for e in tokens] == made.ids and len(tokens[0].top) == 2


def test_the_ids_before_a_token_may_be_kept(tiny_here):
    kept = []
    with tiny_here.session() as session:
        session.on_logits(lambda ids, logits: kept.append(ids))
        made = session.generate(IDS, max_tokens=3, ignore_eos=True)
    assert [ids.tolist() for ids in kept] == [IDS + made.ids[:n] for n in range(3)]
    assert all(ids.flags.owndata for ids in kept)  # and not the library's


def test_without_a_listener_no_token_enters_python(tiny):
    entered = []
    with tiny.session() as session:
        callback = swarmnode._swarm_h.swarm_event_callback(lambda _, event: bool(entered.append(event)))
        swarmnode._native.lib.swarm_session_on_event(session._pointer, callback, None)
        session.generate(IDS, max_tokens=5, ignore_eos=True)
        assert not entered
        session.on_event = lambda event: None
        session.generate(IDS, max_tokens=5, ignore_eos=True)
        assert len(entered) >= 5


def test_what_a_callback_raises_comes_out_of_the_call(tiny):
    def listen(event):
        raise KeyError("listen")

    def mask(ids, logits):
        raise IndexError("mask")

    with tiny.session(on_event=listen) as session:
        with pytest.raises(KeyError):
            session.generate(IDS, max_tokens=5)
        session.on_event = None
        session.on_logits(mask)
        with pytest.raises(IndexError):
            session.generate(IDS, max_tokens=5)
        session.on_logits(None)
        assert session.generate(IDS, max_tokens=2, ignore_eos=True).ids


def test_mistakes_are_refused_with_a_sentence(tiny, tiny_path):
    for wrong in (lambda: swarmnode.Model(None, "/nowhere"), lambda: tiny.generate(IDS, nonsense=1),
                  lambda: tiny.generate(IDS, temperature=-1), lambda: tiny.session(blocks="3:9"),
                  lambda: tiny.generate([1.5]), lambda: tiny.generate(5), lambda: tiny.generate([-1]), lambda: tiny.generate([320]),
                  lambda: tiny.logits(np.zeros((2, 64))), lambda: tiny.logits(np.zeros((2, 63), np.float32))):
        with pytest.raises(swarmnode.Refused, match=r"\w+ \w+ \w+"):
            wrong()
    with pytest.raises(swarmnode.RetryElsewhere):
        swarmnode.Swarm(join="127.0.0.1:1", timeout="1s")


def test_every_code_of_the_library_has_a_class():
    classes = {"SWARM_RETRY": swarmnode.RetryElsewhere, "SWARM_REBUILD": swarmnode.Rebuild, "SWARM_REFUSED": swarmnode.Refused,
               "SWARM_STOP": swarmnode.Stopped, "SWARM_CANCELLED": swarmnode.Cancelled}
    header = (ROOT / "include/swarm.h").read_text()
    codes = dict(re.findall(r"(SWARM_\w+) = (\d+)", header[header.index("enum swarm_code") : header.index("} swarm_code")]))
    assert codes.pop("SWARM_OK") == "0" and codes.keys() == classes.keys()
    for name, number in codes.items():
        with pytest.raises(swarmnode.SwarmError) as raised:
            swarmnode._native.call(lambda *_: int(number))
        assert type(raised.value) is classes[name]
    assert issubclass(swarmnode.Refused, ValueError)


def test_cancel_ends_a_call_and_the_session_goes_on(tiny):
    with tiny.session() as session:
        session.cancel()  # the next call
        with pytest.raises(swarmnode.Cancelled, match=r"\w+ \w+"):
            session.prefill(IDS)
        assert session.position == 0
        session.prefill(IDS)
        session.on_event = lambda event: session.cancel()  # the call in progress
        made = session.generate(max_tokens=200, ignore_eos=True)
        assert made.finish_reason == "interrupted" and len(made.ids) < 100
        session.on_event = None
        assert session.generate(max_tokens=1, ignore_eos=True).ids
    blocks = swarmnode.RemoteBlocks(tiny, 0, 2)
    blocks.cancel()
    with pytest.raises(swarmnode.Cancelled):
        blocks(np.ones((2, 64), np.float32))
    assert blocks(np.ones((2, 64), np.float32)).shape == (2, 64)


def test_an_integer_that_c_does_not_hold_is_refused(tiny_here):
    """Its lowest bits are another number."""
    for wrong in (2**31, 2**32 + 5, -(2**31) - 1):
        for use in (tiny_here.tokenizer.token_bytes, tiny_here.tokenizer.ends):
            with pytest.raises(ValueError, match="out of the range"):
                use(wrong)
    with tiny_here.session() as session:
        session.prefill(IDS)
        with pytest.raises(ValueError, match="out of the range"):
            session.position = 2**64 + 2
        assert session.position == len(IDS)
    with tiny_here.session(blocks="1:2") as session:
        for wrong in (-1, 2**64):
            with pytest.raises(ValueError, match="out of the range"):
                session.forward(np.ones((1, 64), np.float32), wrong)


def test_what_is_closed_or_another_processs_is_refused(tiny_path, swarm):
    model = swarmnode.Model(swarm, tiny_path, **KV)
    session = model.session()
    model.close()
    session.prefill(IDS)  # what a session needs stays open
    with pytest.raises(swarmnode.Refused, match="closed"):
        model.session()
    child = os.fork()
    if child == 0:
        try:
            session.prefill(IDS)
        except swarmnode.Refused as e:
            os._exit(0 if "fork" in str(e) else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    session.step(5)
    for one in (session, model, swarm):
        with pytest.raises(TypeError, match="pickled"):
            pickle.dumps(one)
    session.close()
    session.close()
    gc.collect()


def test_threads_have_sessions_of_their_own(tiny):
    expected = tiny.generate(IDS, max_tokens=10, ignore_eos=True).ids
    results = []
    threads = [threading.Thread(target=lambda: results.append(tiny.generate(IDS, max_tokens=10, ignore_eos=True).ids))
               for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert results == [expected] * 4


def test_one_session_takes_one_call_at_a_time(tiny):
    inside, go = threading.Event(), threading.Event()

    def wait(event):
        inside.set()
        go.wait(60)

    with tiny.session(on_event=wait) as session:
        thread = threading.Thread(target=lambda: session.generate(IDS, max_tokens=2))
        thread.start()
        assert inside.wait(60)
        with pytest.raises(swarmnode.Refused, match="one call at a time"):
            session.prefill(IDS)
        go.set()
        thread.join(60)


def test_leaving_the_loop_ends_the_generation(tiny):
    taken = threading.Event()  # the generation waits for the loop, else it may be at its end before the loop is left
    with tiny.session(on_event=lambda event: event.kind == TEXT and not taken.wait(60)) as session:
        for _ in session.generate(IDS, stream=True, max_tokens=0, ignore_eos=True):
            threading.Timer(0.1, taken.set).start()
            break
        assert len(IDS) <= session.position < 200
        assert session.generate(max_tokens=1, ignore_eos=True).ids


@pytest.mark.parametrize("call", [
    "pieces = model.session().generate([1, 2], stream=True, max_tokens=0, ignore_eos=True); next(pieces)",
    "session = model.session(); pieces = session.generate([1, 2], stream=True, max_tokens=0, ignore_eos=True); "
    "next(pieces); session.close()",
    "blocks = swarmnode.RemoteBlocks(model); thread = threading.Thread(target=lambda: blocks(rows), daemon=True); "
    "thread.start(); time.sleep(0.2); assert thread.is_alive()"])
def test_a_program_may_end_while_a_thread_computes(tiny_path, call):
    """What the thread computes with is not freed under its hands."""
    lines = ["import sys, threading, time, numpy, swarmnode", "model = swarmnode.Model(None, sys.argv[1], threads=1, kv_dtype='f32')",
             "rows = numpy.ones((4000, 100, model.width), numpy.float32)", call]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines), tiny_path], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_asyncio(tiny):
    expected = tiny.generate(IDS, max_tokens=12, ignore_eos=True).text

    async def collect():
        return "".join([piece async for piece in tiny.agenerate(IDS, max_tokens=12, ignore_eos=True)])

    async def both():
        return await asyncio.gather(collect(), collect())

    assert asyncio.run(both()) == [expected] * 2

    async def cancelled():
        with tiny.session() as session:
            async with contextlib.aclosing(session.agenerate(IDS, max_tokens=0, ignore_eos=True)) as pieces:
                async for _ in pieces:
                    break
            return session.generate(IDS, max_tokens=12, ignore_eos=True).text

    assert asyncio.run(cancelled()) == expected


def test_ctrl_c_ends_a_call_and_the_session_goes_on(tiny):
    """The signal comes while the library computes: a listener, in the thread of the call, sends it."""
    main = threading.main_thread().ident

    def interrupt(event):
        if event.kind == swarmnode.EventKind.TOKEN and not sent:
            sent.append(event)
            signal.pthread_kill(main, signal.SIGINT)

    sent = []
    with tiny.session(on_event=interrupt, max_length=250) as session:
        with pytest.raises(KeyboardInterrupt):
            session.generate(IDS, max_tokens=0, ignore_eos=True)
        assert session.position < 250
        assert session.generate(max_tokens=1, ignore_eos=True).ids


class Asked(_native.Cancel):
    """A flag that the test can see."""

    def __init__(self):
        super().__init__()
        self.seen = threading.Event()

    def set(self):
        self.seen.set()


def test_an_interruption_while_the_thread_of_a_call_begins_waits_for_its_end(monkeypatch):
    """The call works with memory that is freed behind the interruption."""
    start, cancel, ended = threading.Thread.start, Asked(), []

    def interrupted(thread):
        start(thread)
        begun.wait()
        raise KeyboardInterrupt

    def work():
        begun.set()
        ended.append(cancel.seen.wait(60))

    begun = threading.Event()
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _native.interruptible(cancel, work)
    assert ended == [True]


def test_a_call_that_was_interrupted_before_its_thread_began_does_nothing(monkeypatch):
    start, threads, done = threading.Thread.start, [], []

    def interrupted(thread):
        threads.append(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _native.interruptible(Asked(), lambda: done.append(1))
    start(threads[0])
    threads[0].join()
    assert not done


def test_a_node_that_dies_is_logged_and_changes_nothing(tiny_path, tmp_path, caplog):
    nodes = Nodes(tmp_path)
    try:
        nodes.start(tiny_path, "0:4", *F32).start(tiny_path, "0:4", *F32)
        model = swarmnode.Model(swarmnode.Swarm(join=nodes.addresses), tiny_path, **KV)
        expected = model.generate(IDS, max_tokens=8, ignore_eos=True).ids
        with model.session() as session, caplog.at_level(logging.WARNING, "swarmnode"):
            session.prefill(IDS)
            (hop,) = session.describe()["hops"]
            nodes.kill(0 if hop["node"].startswith("node0") else 1)
            assert session.generate(max_tokens=8, ignore_eos=True).ids == expected
        assert caplog.records
    finally:
        nodes.end()


def test_text_of_the_real_model_is_the_programs(real, real_path):
    expected = swarm_generate(real_path, "--prompt", "The capital of France is", "--max-tokens", "12")
    assert "".join(real.generate("The capital of France is", stream=True, max_tokens=12)) == expected["text"]
    messages = [{"role": "user", "content": "Name one colour."}]
    with real.session(local="all") as session:
        message = session.chat(messages, max_tokens=16, temperature=0)
        assert message["role"] == "assistant" and message["content"]
        assert real.generate(messages, max_tokens=16, temperature=0).text == message["content"]
