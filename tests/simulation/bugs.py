"""Planted bugs: for each rule of the protocol a change of the shipped code that breaks it.

Each must be found within 500 seeds, or the simulation is too weak: `python -m tests.simulation --bugs`.
"""

from tests.simulation.mutate import Bug, Edit

ACK, APPEND, CLAIM = "broker/lua/ack.lua", "broker/lua/append.lua", "broker/lua/claim.lua"
RENEW, REAP, RELEASE = "broker/lua/renew.lua", "broker/lua/reap.lua", "broker/lua/release.lua"
SEAT_CHECK = """if tonumber(seat[2] or '0') ~= tonumber(ARGV[1]) then
  return {'FENCED'}
end
"""


def _bug(name: str, *edits: tuple[str, str, str]) -> Bug:
    return Bug(name, tuple(Edit(*edit) for edit in edits))


BUGS = (
    # ---- shards and their owners
    _bug("append does not look at the epoch", (APPEND, " or s[3] ~= ARGV[3] or s[4] ~= ARGV[4] then", " then")),
    _bug("renew revives a lease that was reaped", (RENEW, "s[1] == 'leased' and s[2] == ARGV[at + 1] and s[3]", "s[3]")),
    _bug(
        "a lease that merely expired is lost",
        (RENEW, "s[4] == ARGV[at + 3] then", "s[4] == ARGV[at + 3] and redis.call('EXISTS', KEYS[i + 1]) == 1 then"),
    ),
    _bug(
        "an expired shard is claimed without being reaped",
        (CLAIM, "if s[1] ~= 'queued' and not again then", "if redis.call('EXISTS', KEYS[3]) == 1 and not again then"),
    ),
    _bug("an epoch is used again after a restart", (CLAIM, "math.max(tonumber(s[3]) + 1, now)", "tonumber(s[3]) + 1")),
    _bug("reap does not look at the lease", (REAP, "if ARGV[3] == '' and redis.call('EXISTS', KEYS[3]) == 1 then", "if false then")),
    _bug("a coordinator that was blind reaps at once", ("coord/planner.py", "return contact_ms >= ttl_ms", "return True")),
    _bug("anybody releases a shard", (RELEASE, " or s[2] ~= ARGV[2] or s[3] ~= ARGV[3] or s[4] ~= ARGV[4] then", " then")),
    _bug("a released shard is not queued", (RELEASE, "if state == 'queued' then\n  redis.call('HSET', KEYS[5]", "if false then\n  redis.call('HSET', KEYS[5]")),
    _bug("a lost ticket is not issued again", ("coord/planner.py", "return fact.waits_ms >= ISSUE_GRACE_MS", "return False")),
    _bug("a ticket that came to nothing is not issued again", ("coord/planner.py", "return fact.read_ms_ago is not None and fact.read_ms_ago >= CLAIM_GRACE_MS", "return False")),
    # ---- batches
    _bug("FENCED deletes the blob", (APPEND, "      return reply('FENCED', 1)", "      redis.call('UNLINK', KEYS[8])\n      return reply('FENCED', 1)")),
    _bug("SET without NX", ("broker/leases.py", "pipe.set(blob_key, _sized(blob, meta), px=BLOB_TTL_MS, nx=True)", "pipe.set(blob_key, _sized(blob, meta), px=BLOB_TTL_MS)")),
    _bug("the stream is trimmed by length", (APPEND, "redis.call('XADD', KEYS[5], '*',", "redis.call('XADD', KEYS[5], 'MAXLEN', '2', '*',")),
    _bug("a repeat is taken for a gap", (APPEND, "if seq > tonumber(s[5]) and seq <= last then", "if false then")),
    _bug("a gap is accepted", (APPEND, "if seq ~= last + 1 then", "if seq <= last then")),
    _bug("a version is given twice", (APPEND, "if given > 0 and tonumber(s[7]) >= given and", "if false and")),
    _bug("the cap is not looked at", (APPEND, "if full then", "if false then")),
    _bug("bytes are not checked to be there", (APPEND, "if stored ~= size or", "if false and stored ~= size or")),
    _bug("an accepted blob keeps its TTL", (APPEND, "redis.call('PERSIST', KEYS[8])\nunpark", "unpark")),
    _bug("a discarded batch is counted each time", (APPEND, "    if known == id then\n      return\n    end\n", "")),
    _bug("parked bytes stay when a shard is reaped", (REAP, "if tonumber(s[7] or '0') > 0 then", "if false then")),
    _bug("a snapshot counts before its batch is accepted", (APPEND, "    redis.call('PEXPIRE', KEYS[9], ARGV[8])\n  end\n  return reply('FULL')", "    redis.call('HSET', KEYS[2], 'snapshot', KEYS[9])\n  end\n  return reply('FULL')")),
    _bug("a batch without answer is taken for delivered", ("producers/appender.py", "            self._wait_for_broker(parcel, error)\n            return\n", "            self._finish(parcel, Outcome.ACCEPTED, None)\n            return\n")),
    # ---- the seat
    _bug("ack without the seat", (ACK, SEAT_CHECK, "")),
    _bug("publish without the seat", ("broker/lua/policy_publish.lua", "if tonumber(ctl[1] or '0') ~= tonumber(ARGV[1]) then\n  return {'FENCED'}\nend\n", "")),
    _bug("the seat is taken from a living holder", ("broker/lua/seat_claim.lua", "if seat[1] and seat[1] ~= ARGV[1] and", "if false and")),
    _bug("a seat that was lost is renewed", ("broker/lua/seat_renew.lua", "if tonumber(redis.call('HGET', KEYS[1], 'seat_epoch') or '0') ~= tonumber(ARGV[2]) then", "if false then")),
    _bug("the fence is raised after the checkpoints were read", ("broker/lua/seat_claim.lua", "redis.call('HSET', KEYS[1], 'seat_epoch', epoch)\n", ""), ("broker/lua/seat_renew.lua", "if tonumber(redis.call('HGET', KEYS[1], 'seat_epoch') or '0') ~= tonumber(ARGV[2]) then\n  return 'LOST'\nend\n", "redis.call('HSET', KEYS[1], 'seat_epoch', ARGV[2])\n")),
    _bug("a publish lowers the version", ("broker/lua/policy_publish.lua", "if version <= latest and not again then", "if false then"), ("consumers/parts.py", "version = max(published, checkpointed)", "version = checkpointed")),
    _bug("restored weights keep their number", ("consumers/publisher.py", "        self.version += 1 + self._skip\n", "        pass\n"), ("broker/lua/policy_publish.lua", "local again = version == latest and redis.call('HGET', KEYS[2], 'sha256') == ARGV[3]", "local again = version == latest")),
    _bug("a lost publish is not repeated", ("consumers/publisher.py", "        if published < self.version:\n            self._pending = True\n", "")),
    # ---- training, checkpoints, acks
    _bug("ack before the checkpoint", ("consumers/loop.py", '        if parts.setting.spec.trainer.ack == "update":\n            parts.ledger.release()\n        self._evaluate', "        parts.ledger.release()\n        self._evaluate")),
    _bug("an ack that is repeated counts again", (ACK, "if redis.call('XDEL', KEYS[2], ARGV[at]) == 1 then", "if redis.call('XDEL', KEYS[2], ARGV[at]) >= 0 then"), (ACK, "if redis.call('HGET', accepted, identity) == ARGV[at] then", "if true then")),
    _bug("checkpoints are named by update alone", ("checkpoint.py", 'f"checkpoint-{seat_epoch:020d}-{update:012d}.safetensors"', 'f"checkpoint-{0:020d}-{update:012d}.safetensors"')),
    _bug("marks hold what was only read", ("consumers/ordering.py", "return {shard: line.mark for shard, line in self._lines.items() if line.mark is not None}", "return {shard: line.cursor for shard, line in self._lines.items() if line.cursor is not None}")),
    _bug("marks compare seq without the epoch", ("consumers/ordering.py", "        if pointer.epoch == self.epoch:\n            return pointer.nonce == self.nonce and pointer.seq <= self.seq\n", "        if True:\n            return pointer.seq <= self.seq\n")),
    _bug("batches are consumed out of order", ("consumers/ordering.py", "return follows(self.cursor, mark) or self.forgiven == mark", "return True")),
    _bug("pending entries are not taken over", ("consumers/reader.py", "if self._stranded or idle_s >= self._look_again_s:", "if False:")),
    _bug("a consumer is deleted with what it holds", ("broker/lua/group_tidy.lua", "tonumber(fact.pending) == 0 and ", "")),
    _bug("a group that was lost is made anew at its end", ("broker/experience.py", 'group: str = keys.TRAINER_GROUP, *, start: str = "0") -> None:', 'group: str = keys.TRAINER_GROUP, *, start: str = "$") -> None:')),
    _bug("what is left at a stop is not settled", ("consumers/ending.py", "        parts.evaluator.drop()\n    _settle_read(loop, train=train, save=save)\n", "        parts.evaluator.drop()\n")),
    _bug("a batch that kills its trainer is tried for ever", ("consumers/reader.py", "if self._suspects[pointer.entry_id]:", "if False:")),
    # ---- memory, and the end
    _bug("a seat cannot be claimed without memory", ("broker/lua/seat_claim.lua", "redis.call('HDEL', KEYS[1], '-')\n", "")),
    _bug("a group cannot be made without memory", ("broker/lua/group_make.lua", "redis.call('HDEL', KEYS[1], '-')\n", "")),
    _bug("a stop is undone", ("broker/lua/set_command.lua", "if command == 'stop' then", "if false then")),
    _bug("keys come back after rm", ("broker/lua/set_active.lua", "if redis.call('EXISTS', KEYS[1]) == 0 then\n  return 'GONE'\nend\n", "")),
)
