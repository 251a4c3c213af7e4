"""The watcher: sees every command that the server executes, keeps the truth, and checks the promises after each.

It never changes anything. A broken promise is a Violation at the very command that breaks it.
"""

from collections.abc import Callable, Sequence
from typing import Any

from heddle.broker.scripts import names, script
from tests.simulation.books import check_books, check_ctl, check_policies, check_readers, check_turn
from tests.simulation.learn import Trained
from tests.simulation.play import name_of
from tests.simulation.server import SimServer, shown
from tests.simulation.truth import Accepted, Batch, Owner, Truth, must
from tests.simulation.values import ServerError

Args = Sequence[bytes]
VERBS = {script(name).sha.encode(): name for name in names()}
CHANGE_POLICIES = frozenset(["policy_publish", "policy_forget", "eval_set"])
ENDED = (b"completed", b"stopped", b"failed")
CHANGE_FLOW = frozenset(["append", "ack", "dead", "roll_back", "release", "reap", "forgotten", "replay"])


class Watcher:
    """Of one world.

    Attributes:
        truth: what must be so.
        events: commands executed; trace: what they were, when somebody wants to know.
        is_healthy: asked whether a worker lives and could have renewed, before its shard was reaped.
        is_dead: asked whether a process is dead for certain.
        continues: a shard with a snapshot is always continued from it: no owner dies so often that it is not tried.
        saved: what the checkpoint that would be resumed holds; None before there is one.
        waits: since when each shard waits for room, as the server knew it after the last append, or when it came back.
    """

    def __init__(self, server: SimServer, experiment: str, *, traced: bool = False) -> None:
        self.truth = Truth()
        self.events = 0
        self.trace: list[str] | None = [] if traced else None
        self.is_healthy: Callable[[str], bool] = lambda worker: False
        self.is_dead: Callable[[str], bool] = lambda worker: True
        self.saved: frozenset[Batch] | None = None
        self.ack_waits = True
        self.sync = False
        self._server = server
        self._tag = f"heddle:{{{experiment}.0}}:".encode()
        self._ctl: dict[bytes, bytes] = {}
        self._leases: dict[int, int] = {}
        self._seat_until = 0
        self._stood: dict[int, tuple[int, tuple[int, int]]] = {}
        self.continues = True
        self.waits: dict[bytes, float] = {}

    def executed(self, process: str, command: Args, reply: Any) -> None:
        """A command was executed for `process`."""
        self.events += 1
        verb = VERBS.get(command[1], "?") if command[0] == b"EVALSHA" else ""
        if self.trace is not None:
            what = verb or command[0].decode().lower()
            words = b" ".join(command[3 if verb else 1 :])[-120:].decode("ascii", "replace")
            self.trace.append(f"{self._server.clock():.3f} {process} {what} {words} -> {shown(reply)}")
        if not verb or isinstance(reply, ServerError):
            return
        count = int(command[2])
        if count and not command[3].startswith(self._tag):
            return
        self.truth.number = self._server.written - 1
        told = getattr(self, f"_{verb}", None)
        if told is not None:
            told(command[3 : 3 + count], command[3 + count :], reply)
        self._ctl = check_ctl(self._server.db, self._tag, self._ctl)
        if verb in CHANGE_FLOW and self._ctl:
            check_books(self._server.db, self._tag, self.truth)
        if verb in CHANGE_POLICIES:
            check_policies(self._server.db, self._tag)
        if verb == "group_tidy":
            check_readers(self._server.db, command[3])

    def came_back(self, keep: int) -> None:
        """The server came back without what it wrote from command number `keep` on."""
        self.truth.forget(keep)
        self._ctl = {}
        db = self._server.db
        for shard in list(self._leases):
            self._leases[shard] = db.expires.get(self._tag + b"lease:%d" % shard, 0)
        self._seat_until = db.expires.get(self._tag + b"seat", 0)
        waits: Any = db.data.get(self._tag + b"waiting", {})
        self.waits = dict(waits)
        check_books(db, self._tag, self.truth)

    def checkpointed(self, seen: Sequence[Trained], newest: Sequence[Trained]) -> None:
        """A checkpoint was written; `newest` is what a trainer would resume now."""
        batches = [item[:4] for item in seen]
        _once(batches, "P2: a batch is in the model twice")
        if not self.truth.losses:  # what the broker forgets after it was trained on is played again
            _once([item[4:] for item in seen], "P2: the same steps are in the model twice")
        for batch in batches:
            must(batch in self.truth.ever_accepted, "a batch is in the model that was never accepted", batch)
        self.saved = frozenset(item[:4] for item in newest)
        if self.ack_waits:
            for batch, outcome in self.truth.settled.items():
                fine = outcome != "trained" or batch in self.saved
                must(fine, "P2: an acked batch is in no checkpoint", batch)

    # ---- what each script's reply means

    def _claim(self, keys: Args, args: Args, reply: Any) -> None:
        holder = self.truth.shard(int(args[0])).owner
        asked_again = holder is not None and (holder[0], holder[2]) == (args[1].decode(), args[2].decode())
        must(reply[0] != b"HELD" or not asked_again, "P1: a claim that was granted was not answered again", holder)
        if reply[0] == b"OK":
            shard = int(args[0])
            must(reply[1].isdigit(), "P1: an epoch is no whole number", reply[1])
            owner = (args[1].decode(), int(reply[1]), args[2].decode())
            self.truth.claimed(shard, owner, int(reply[2]), int(reply[3]))
            self._leases[shard] = self._server.db.expires[keys[2]]

    def _renew(self, keys: Args, args: Args, reply: Any) -> None:
        for place in range(4, len(reply), 2):
            at = 1 + (place - 4) // 2 * 5
            shard, owner = int(args[at]), _owner(args[at + 1 :])
            owned = self.truth.shard(shard).owner == owner
            must((reply[place] == b"OK") == owned, "P1: a renewal was answered wrongly", (shard, owner, reply[place]))
            if owned:
                self._leases[shard] = self._server.db.expires[keys[3 + (place - 4)]]

    def _append(self, keys: Args, args: Args, reply: Any) -> None:
        shard, owner, seq, given = int(args[0]), _owner(args[1:]), int(args[4]), int(args[15])
        batch, status = (shard, owner[1], owner[2], seq), reply[0]
        if status == b"GONE":
            return
        truth = self.truth.shard(shard)
        owned = truth.owner == owner
        must((status == b"FENCED") != owned, "P1: an append was answered wrongly", (batch, status, truth.owner))
        if owned:
            self._leases[shard] = self._server.db.expires[keys[2]]
        if status == b"OK":
            check_turn(self._server.db, self._tag, shard, self.waits)
            self._took(keys, args, batch, owner)
        elif status == b"DUP" or reply[7] == 1:
            must(batch in self.truth.accepted, "P2: an unknown batch was called accepted", (batch, status))
        elif status in (b"FENCED", b"GAP", b"GIVEN"):
            once = self.sync or args[8] == b"eval"
            ctl: Any = self._server.db.data.get(keys[0], {})
            expected = ctl.get(b"outcome") or (once and given <= truth.given)  # or its trainer has left for good
            must(status != b"GIVEN" or expected, "a version was called given", (batch, given))
            must(batch not in self.truth.accepted or status == b"GIVEN", "an accepted batch was called new", batch)
            self.truth.turned_away(batch, given)
        waits: Any = self._server.db.data.get(keys[6], {})
        self.waits = dict(waits)

    def _took(self, keys: Args, args: Args, batch: Batch, owner: Owner) -> None:
        db = self._server.db
        stream: Any = db.data[keys[4]]
        blob: Any = db.data.get(keys[7], b"")
        must(len(blob) == int(args[13]), "a batch was accepted whose bytes are not there", batch)
        fact = Accepted(b"%d-%d" % stream.last, args[8].decode(), int(args[12]), int(args[13]), name_of(blob))
        given = int(args[15])
        self._check_continuation(batch, fact, has_snapshot=len(keys) > 8 and b":snapshot:" in keys[8])
        self.truth.took(batch, owner, given, fact, once=given > 0 and (self.sync or args[8] == b"eval"))

    def _check_continuation(self, batch: Batch, fact: Accepted, *, has_snapshot: bool) -> None:
        """Behind a batch that came with a snapshot the very next steps are played, whoever plays them."""
        shard, seq = batch[0], batch[3]
        stood = self._stood.pop(shard, None)
        if stood is not None and stood[0] == seq - 1 and not self.truth.losses and self.continues:
            must(fact.name == stood[1], "P8: a shard was not continued where it stood", (batch, fact.name, stood))
        if has_snapshot:
            self._stood[shard] = (seq, (fact.name[0], fact.name[1] + fact.steps))

    def _release(self, keys: Args, args: Args, reply: Any) -> None:
        shard, owner = int(args[0]), _owner(args[1:])
        owned = self.truth.shard(shard).owner == owner
        must((reply[0] in (b"OK", b"GAP")) == owned or reply[0] == b"GONE", "P1: a release was answered wrongly", owner)
        if reply[0] == b"OK":
            self.truth.lost(shard)
            self.truth.count_forgotten(int(args[6]))

    def _reap(self, keys: Args, args: Args, reply: Any) -> None:
        if reply[0] != b"OK":
            return
        shard, truth = int(args[0]), self.truth.shard(int(args[0]))
        must(truth.owner is not None, "a shard was reaped that nobody owns", shard)
        worker = reply[2].decode()
        if args[2]:
            must(self.is_dead(worker), "P1: a living worker's shard was taken from it", (shard, worker))
        else:
            lasts = self._server.db.lasts(self._tag + b"lease:%d" % shard, self._leases.get(shard, 0))
            must(lasts <= 0, "P1: a shard was reaped while its lease lasted", (shard, lasts))
            must(not self.is_healthy(worker), "a healthy worker's shard was reaped", (shard, worker))
        self.truth.lost(shard)

    def _forgotten(self, keys: Args, args: Args, reply: Any) -> None:
        """Counted against the books at the end: the script alone knows whether it counted this time."""

    def _ack(self, keys: Args, args: Args, reply: Any) -> None:
        if reply[0] != b"OK":
            return
        self._check_seat(args[0])
        for place, at in enumerate(range(2, len(args), 4)):
            self._settle(args[at], keys[3 + place], args[at + 1].decode())

    def _dead(self, keys: Args, args: Args, reply: Any) -> None:
        if reply[0] == b"OK" and args[0]:
            self._check_seat(args[0])
            self._settle(args[2], keys[4], "dead")
        elif reply[0] == b"OK" and reply[1] == 1:
            must(args[2] not in self.truth.by_entry, "P2: a worker's batch was set aside as foreign", args[2])

    def _settle(self, entry: bytes, blob: bytes, outcome: str) -> None:
        named = self.truth.by_entry.get(entry)
        if named is not None and not blob.endswith(b":blob:" + b":".join(str(part).encode() for part in named)):
            return  # the id was given out again: what has it now is left alone, or the books miss it
        batch = self.truth.settle(entry, outcome)
        must(batch is None or outcome != "dropped", "P2: dropped, and nothing here takes bytes from a batch", batch)
        if batch is not None and outcome == "trained" and self.ack_waits:
            must(batch in (self.saved or ()), "P2: a batch was acked before a checkpoint held it", batch)

    def _loading(self, keys: Args, args: Args, reply: Any) -> None:
        if reply == b"OK":
            self._check_seat(args[0])

    def _snapshots_drop(self, keys: Args, args: Args, reply: Any) -> None:
        if reply[0] == b"OK":
            status: Any = self._server.db.data.get(keys[1], {})
            state, seen = status.get(b"state", b""), self._ctl.get(b"leader_epoch", b"0")
            must(state in ENDED, "P8: snapshots were dropped of a run that goes on", state)
            must(int(args[0]) >= int(seen), "snapshots were dropped by one who leads no more", (args[0], seen))

    def _check_seat(self, epoch: bytes) -> None:
        must(int(epoch) == self.truth.seat[1] and bool(self.truth.seat[0]), "P1: acted without the seat", epoch)

    def _seat_claim(self, keys: Args, args: Args, reply: Any) -> None:
        if reply[0] == b"OK":
            was_free = self._server.db.lasts(keys[1], self._seat_until) <= 0
            self.truth.sat_down(args[0].decode(), int(reply[1]), was_free=was_free)
            self._seat_until = self._server.db.expires[keys[1]]

    def _seat_renew(self, keys: Args, args: Args, reply: Any) -> None:
        if reply == b"OK":
            self._check_seat(args[1])
            must(keys[1] in self._server.db.data, "P1: a seat was renewed that ran out", args[1])
            self._seat_until = self._server.db.expires[keys[1]]

    def _seat_release(self, keys: Args, args: Args, reply: Any) -> None:
        if reply == 1:
            self.truth.stood_up(int(args[0]))

    def _policy_publish(self, keys: Args, args: Args, reply: Any) -> None:
        if reply[0] == b"OK":
            self._check_seat(args[0])
            self.truth.published(int(args[1]), args[2].decode())


def _owner(args: Args) -> Owner:
    return (args[0].decode(), int(args[1]), args[2].decode())


def _once(items: Sequence[Any], promise: str) -> None:
    if len(set(items)) != len(items):
        must(False, promise, next(item for item in items if items.count(item) > 1))
