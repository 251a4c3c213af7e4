-- Write a pool's desired size, compare-and-set on rev. Runs when the memory is full: HDEL comes first.
-- KEYS  1 pool (hash)
-- ARGV  1 desired, "" for "each supervisor as many as it was started with"  2 rev the caller saw, "" for any
-- Reply {"OK" | "CONFLICT", rev, desired}
local pool = redis.call('HMGET', KEYS[1], 'rev', 'desired')
local rev = whole(pool[1]) -- begun anew where somebody wrote none
if ARGV[2] ~= '' and tonumber(ARGV[2]) ~= rev then
  return {'CONFLICT', string.format('%.0f', rev), pool[2] or ''}
end
local shown = string.format('%.0f', rev + 1)
redis.call('HDEL', KEYS[1], 'desired')
if ARGV[1] ~= '' then
  redis.call('HSET', KEYS[1], 'desired', ARGV[1])
end
redis.call('HSET', KEYS[1], 'rev', shown)
return {'OK', shown, ARGV[1]}
