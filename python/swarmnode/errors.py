"""What can go wrong, by what the caller may do about it. The text is one sentence for people."""


class SwarmError(Exception):
    """The base of all errors of this package.

    reason: "no_room" (sessions have the nodes' KV memory or places), "too_long" (no node could hold so many tokens), or ""."""

    reason: str = ""


class RetryElsewhere(SwarmError):
    """The call was right, but no node could do it now: try again later.

    retry_after: after how many seconds a node said that it can; None: it is not known."""

    retry_after: float | None = None


class Rebuild(SwarmError):
    """An audit failed: the timeline ends before the wrong result. Continue from `Session.tokens`; other nodes compute."""


class Refused(SwarmError, ValueError):
    """An argument, an option or a file is wrong: do not repeat the call unchanged."""


class Stopped(SwarmError):
    """This process cannot go on with the object: memory is out, or a device failed. Close it."""


class Cancelled(SwarmError):
    """The call was cancelled by `cancel()`, or a callback stopped it. The object stays usable."""
