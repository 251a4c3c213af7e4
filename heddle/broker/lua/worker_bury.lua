-- Say how a worker ended, for the list of its pool. Runs when the memory is full: PERSIST comes first, on a key that must
-- exist.
-- KEYS  1 worker (hash with TTL)
-- ARGV  1 ttl ms  2 how it ended
-- Reply 1 written | 0 nothing is known of it
if redis.call('EXISTS', KEYS[1]) == 0 then
  return 0
end
redis.call('PERSIST', KEYS[1])
redis.call('HSET', KEYS[1], 'died', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
