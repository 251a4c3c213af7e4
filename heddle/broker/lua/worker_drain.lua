-- Ask a living worker to drain. Runs when the memory is full: PERSIST comes first, on a key that must exist.
-- KEYS  1 worker (hash with TTL)
-- ARGV  none
-- Reply 1 asked | 0 no such worker, or it died
local left = redis.call('PTTL', KEYS[1])
if left == -2 or redis.call('HEXISTS', KEYS[1], 'died') == 1 then
  return 0
end
redis.call('PERSIST', KEYS[1])
redis.call('HSET', KEYS[1], 'drain', '1')
if left > 0 then
  redis.call('PEXPIRE', KEYS[1], left)
end
return 1
