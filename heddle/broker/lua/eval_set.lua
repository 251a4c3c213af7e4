-- Ask the eval shards to play a policy version, as the holder of the seat; it is kept until the next one. Only rises.
-- Runs when the memory is full: HDEL of nothing comes first.
-- KEYS  1 ctl (hash)  2 policy (hash)
-- ARGV  1 seat epoch  2 version  3 news channel
-- Reply "OK" | "LOWER" | "MISSING" (that version is not kept) | "FENCED" | "GONE"
if redis.call('EXISTS', KEYS[1]) == 0 then
  return 'GONE'
end
local ctl = redis.call('HMGET', KEYS[1], 'seat_epoch', 'eval_policy')
if tonumber(ctl[1] or '0') ~= tonumber(ARGV[1]) then
  return 'FENCED'
end
local pinned = tonumber(ctl[2] or '0')
if tonumber(ARGV[2]) == pinned then
  return 'OK'
end
if tonumber(ARGV[2]) < pinned then
  return 'LOWER'
end
if redis.call('EXISTS', KEYS[2]) == 0 then
  return 'MISSING'
end
redis.call('HDEL', KEYS[1], '-')
redis.call('HSET', KEYS[1], 'eval_policy', ARGV[2])
redis.call('PUBLISH', ARGV[3], 'eval ' .. ARGV[2])
return 'OK'
