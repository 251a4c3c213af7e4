-- Write a worker's heartbeat, in place of what somebody may have put there. Runs when the memory is full: PEXPIRE comes
-- first.
-- KEYS  1 worker (hash with TTL)
-- ARGV  1 ttl ms  2.. field, value ...
-- Reply "1" when the worker is asked to drain | "0"
redis.call('PEXPIRE', KEYS[1], ARGV[1])
local set = redis.pcall('HSET', KEYS[1], unpack(ARGV, 2))
if type(set) == 'table' and set.err then
  if not string.find(set.err, 'WRONGTYPE', 1, true) then
    return set
  end
  redis.call('UNLINK', KEYS[1])
  redis.call('HSET', KEYS[1], unpack(ARGV, 2))
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return redis.call('HGET', KEYS[1], 'drain') or '0'
