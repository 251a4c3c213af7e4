"""How environments are closed: one that fails at that is of no further interest to anybody."""

import contextlib
from typing import Any


def close_env(env: Any) -> None:
    """Close `env`."""
    with contextlib.suppress(Exception):
        env.close()


async def close_async(env: Any) -> None:
    """Close an environment of coroutines; one without a close has nothing to close."""
    with contextlib.suppress(Exception):
        closed = getattr(env, "close", lambda: None)()
        if closed is not None:
            await closed
