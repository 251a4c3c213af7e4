"""How environments are closed: one that fails at that is of no further interest to anybody."""

import contextlib
from typing import Any

from heddle.spec.objects import user_errors


def close_env(env: Any) -> None:
    """Close `env`."""
    with contextlib.suppress(*user_errors()):
        env.close()


async def close_async(env: Any) -> None:
    """Close an environment of coroutines; one without a close has nothing to close."""
    with contextlib.suppress(*user_errors()):
        closed = getattr(env, "close", lambda: None)()
        if closed is not None:
            await closed
