"""A connection to a swarm of nodes."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from typing import Any

from ._native import Cancel, Handle, call, call_text, interruptible, lib, options


class Swarm(Handle):
    """The nodes that answer, found through the addresses of `join`, each "HOST:PORT" or "HOST:PORT#KEY".

    Options are those of the command line with underscores: swarm_key, identity, timeout, cache, dht with model
    (`describe_options("connection")`). RetryElsewhere: no node answered. Any number of threads may use it."""

    _what = "swarm"

    def __init__(self, join: str | Sequence[str] = (), **given: Any) -> None:
        self._cancel = Cancel()
        pointer = ctypes.c_void_p()
        join = [join] if isinstance(join, str) else list(join)
        with options("connection", {"join": join, **given}) as made:
            interruptible(self._cancel,
                          lambda: call(lib.swarm_connect, made, self._cancel.pointer, ctypes.byref(pointer)))
        self._begin(pointer, lib.swarm_disconnect)

    def status(self) -> dict[str, Any]:
        """The nodes and the coverage of the blocks, as `swarm status --json` prints them. Takes up to two seconds."""
        with self._use() as pointer:
            status: dict[str, Any] = json.loads(
                interruptible(self._cancel, lambda: call_text(lib.swarm_connection_status, pointer)))
        return status

    def models(self) -> list[dict[str, Any]]:
        """The models that nodes serve: {"id", "name", "blocks" (their number), "nodes" (their names), "gaps" ("A:B"
        that no node serves)}."""
        status = self.status()
        models = []
        for coverage in status["coverage"]:
            nodes = [n for n in status["nodes"] if n.get("model") == coverage["model"]]
            names = [n["model_name"] for n in nodes if n.get("model_name")]
            models.append({"id": coverage["model"], "name": names[0] if names else "", "blocks": coverage["n_blocks"],
                           "nodes": [n["name"] for n in nodes], "gaps": coverage["gaps"]})
        return models

    def __repr__(self) -> str:
        return f"<swarmnode.Swarm{', closed' if self.closed else ''}>"
