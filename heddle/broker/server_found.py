"""What runs in a folder: the server of ours that was started there, found again by other processes of this user.

It never starts or ends one. A server that refuses, loads or stands still is one that runs, as long as it lives.
"""

import json
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from heddle.broker.server_folder import is_held

SERVER_FILE = "server.json"
ANSWER_TIMEOUT_S = 2.0


def find_running(folder: Path) -> str | None:
    """The url of the server that was started in `folder`, if it runs and is the very one; else None."""
    entry = running_entry(folder)
    return None if entry is None else entry["url"]


def is_running(folder: Path) -> bool:
    """Whether a server of ours runs in `folder`."""
    return find_running(folder) is not None


def running_entry(folder: Path) -> dict[str, str] | None:
    """What is known of the server in `folder`, as `find_running` checks it.

    Keys: url, remote_url ("" when none), redis_cli, pid, run_id, server, durability.
    """
    folder = folder.expanduser().resolve()
    try:
        entry = json.loads((folder / SERVER_FILE).read_text())
        known = {str(key): str(value) for key, value in entry.items()}
        return known if _is_the_one(known["url"], known["run_id"], folder) else None
    except (OSError, ValueError, KeyError, AttributeError, redis.RedisError):
        return None


def ask_run_id(url: str) -> tuple[str, bool]:
    """The id that the server at `url` took when it started, and whether it is still loading its data.

    Only INFO is asked: a server with a full disk refuses even PING, and one that loads does, too.

    Raises:
        redis.RedisError: it does not answer, or not to us, or with an error.
    """
    once = Retry(NoBackoff(), 0)
    with redis.Redis.from_url(
        url, socket_timeout=ANSWER_TIMEOUT_S, socket_connect_timeout=ANSWER_TIMEOUT_S, retry=once, decode_responses=True
    ) as client:
        told = client.info("server", "persistence")
        return str(told["run_id"]), str(told.get("loading", 0)) != "0"


def is_answer(error: redis.RedisError) -> bool:
    """Whether a server of ours may have said this: it loads, is full, runs somebody's script, or refuses for now."""
    if isinstance(error, redis.BusyLoadingError) or "max number of clients" in str(error):
        return True
    return isinstance(error, redis.ResponseError) and not isinstance(error, redis.exceptions.NoPermissionError)


def _is_the_one(url: str, run_id: str, folder: Path) -> bool:
    """Whether the server at `url` is that of `folder`; one that cannot say so is, when the folder's server lives."""
    try:
        return ask_run_id(url)[0] == run_id
    except redis.RedisError as error:
        # A stopped server lets nobody in once as many wait as may: on a socket file that is an error at once.
        is_silent = isinstance(error, redis.TimeoutError) or isinstance(error.__context__, BlockingIOError)
        # One that is full says so and hangs up, at times before it was asked.
        has_hung_up = isinstance(error.__context__, BrokenPipeError | ConnectionResetError)
        return (is_silent or has_hung_up or is_answer(error)) and is_held(folder)
