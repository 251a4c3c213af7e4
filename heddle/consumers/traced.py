"""Traced: the spans of an update and of what it was made of, on the trainer's side.

Only a trainer that traces has this. A span that begins with the broker's answer to an append has the server's time for
its start: where the clocks of two hosts differ, so do the spans.
"""

from collections.abc import Sequence

from heddle.broker.pointers import identity_of
from heddle.consumers.reader import Loaded
from heddle.tracing import Ref, Span, Tracing, Value, batch_ref, is_followed, policy_ref

MOST_LINKS = 1_000
"""Of an update; batches beyond are in traces of their own and say which update they went into."""


class Traces:
    """The spans of one experiment's updates."""

    def __init__(self, tracing: Tracing, experiment: str, partition: int) -> None:
        self._tracing = tracing
        self._experiment = experiment
        self._partition = partition

    def first(self, version: int, at: float) -> None:
        """A version was published `at` that time, monotonic seconds, that no update made: the first of this trainer."""
        publish = policy_ref("publish", self._experiment, version)
        about: dict[str, Value] = {"experiment": self._experiment, "version": version}
        self._tracing.add([Span(publish, "publish", self._tracing.ns(at), self._tracing.ns(at), attributes=about)])

    def update(
        self, batches: Sequence[Loaded], *, update: int, version: int, began: float, ended: float, published: float
    ) -> None:
        """An update is over and published.

        Args:
            version: the policy that it made.
            began, ended, published: monotonic seconds.
        """
        began_ns, ended_ns, published_ns = (self._tracing.ns(at) for at in (began, ended, published))
        about: dict[str, Value] = {"experiment": self._experiment, "update": update, "version": version}
        this = policy_ref("update", self._experiment, version)
        spans: list[Span] = []
        links: list[Ref] = []
        for item in batches:
            if of_batch := self._of_batch(item, this, began_ns, about):
                spans += of_batch
                links.append(of_batch[-1].ref)
        steps = sum(item.pointer.steps for item in batches)
        told = {**about, "batches": len(batches), "steps": steps}
        spans.append(Span(this, "update", began_ns, ended_ns, links=tuple(links[:MOST_LINKS]), attributes=told))
        publish = policy_ref("publish", self._experiment, version)
        spans.append(Span(publish, "publish", ended_ns, published_ns, parent=this, attributes=about))
        self._tracing.add(spans)

    def _of_batch(self, item: Loaded, update: Ref, began_ns: int, about: dict[str, Value]) -> list[Span]:
        pointer, batch = item.pointer, identity_of(item.pointer)
        append = batch_ref("append", self._experiment, self._partition, batch)
        if not is_followed(append, pointer.played_ms):
            return []
        accepted_ns, read_ns = 1_000_000 * pointer.appended_ms, self._tracing.ns(item.at)
        told = {**about, "shard": pointer.shard, "epoch": pointer.epoch, "seq": pointer.seq}
        stream = batch_ref("stream", self._experiment, self._partition, batch)
        queue = batch_ref("queue", self._experiment, self._partition, batch)
        return [
            Span(stream, "stream", accepted_ns, read_ns, parent=append, attributes=told),
            Span(queue, "queue", read_ns, began_ns, parent=append, links=(update,), attributes=told),
        ]
