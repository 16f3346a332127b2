"""Language models over a swarm of nodes: libswarm for Python.

    import swarmnode
    swarm = swarmnode.Swarm(join=["192.0.2.1:31330"])
    model = swarmnode.Model(swarm, "MODEL.gguf")
    for text in model.generate("Once upon a time", stream=True):
        print(text, end="", flush=True)

numpy is all that this needs. `swarmnode.nn` has remote blocks as a PyTorch module, `swarmnode.hf` a model of
transformers. docs/PYTHON.md explains all of it.
"""

from ._native import describe_options, lib as _lib
from .blocks import InferenceSession, RemoteBlocks
from .errors import Cancelled, Rebuild, Refused, RetryElsewhere, Stopped, SwarmError
from .model import Adapter, Model, Tokenizer
from .session import Event, EventKind, Generation, Session
from .swarm import Swarm

__version__: str = _lib.swarm_version().decode()
__all__ = [
    "Adapter", "Cancelled", "Event", "EventKind", "Generation", "InferenceSession", "Model", "Rebuild", "Refused",
    "RemoteBlocks", "RetryElsewhere", "Session", "Stopped", "Swarm", "SwarmError", "Tokenizer", "describe_options",
]
