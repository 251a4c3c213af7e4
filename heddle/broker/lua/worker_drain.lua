-- Ask a living worker to drain. Runs when the memory is full: PERSIST comes first, on a key that must exist.
-- KEYS  1 worker (hash with TTL)
-- ARGV  1 ms that the hash is kept after a heartbeat
-- Reply 1 asked | 0 no such worker, it died, or it was silent for too long
local left = redis.call('PTTL', KEYS[1])
local said = redis.call('HMGET', KEYS[1], 'died', 'beat_ttl_ms')
if left == -2 or said[1] then
  return 0
end
local lasts = whole(said[2])
if left > 0 and lasts > 0 and tonumber(ARGV[1]) - left >= lasts then
  return 0
end
redis.call('PERSIST', KEYS[1])
redis.call('HSET', KEYS[1], 'drain', '1')
if left > 0 then
  redis.call('PEXPIRE', KEYS[1], left)
end
return 1
