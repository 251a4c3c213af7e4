-- Offer the shared memory of the trainer's host to producers, as the holder of the seat; the next claim makes it void.
-- Runs when the memory is full: HDEL of nothing comes first.
-- KEYS  1 ctl (hash)
-- ARGV  1 seat epoch  2 token of the shared memory
-- Reply "OK" | "FENCED" | "GONE"
local seat = redis.call('HMGET', KEYS[1], 'command', 'seat_epoch')
if not seat[1] then
  return 'GONE'
end
if tonumber(seat[2] or '0') ~= tonumber(ARGV[1]) then
  return 'FENCED'
end
redis.call('HDEL', KEYS[1], '-')
redis.call('HSET', KEYS[1], 'plane', ARGV[2])
return 'OK'
