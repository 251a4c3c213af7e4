-- Count as rolled back what was acked as trained and is in no checkpoint, as the holder of the seat; once for each seat.
-- Runs when the memory is full: HDEL of nothing comes first.
-- KEYS  1 ctl (hash)  2 flow (hash)
-- ARGV  1 seat epoch  2 batches  3 steps; below 0 for what is in one after all
--       4 batches that counted as trained when that was decided: a broker that was killed since may have gone back
-- Reply "OK" | "STALE": look again | "FENCED" | "GONE"
local seat = redis.call('HMGET', KEYS[1], 'command', 'seat_epoch')
if not seat[1] then
  return 'GONE'
end
if tonumber(seat[2] or '0') ~= tonumber(ARGV[1]) then
  return 'FENCED'
end
if redis.call('HGET', KEYS[2], 'rolled_back_by') == ARGV[1] then
  return 'OK'
end
if tonumber(redis.call('HGET', KEYS[2], 'trained') or '0') ~= tonumber(ARGV[4]) then
  return 'STALE'
end
redis.call('HDEL', KEYS[2], '-')
redis.call('HSET', KEYS[2], 'rolled_back_by', ARGV[1])
for i, unit in ipairs({'', '_steps'}) do
  local number = tonumber(ARGV[i + 1])
  redis.call('HINCRBY', KEYS[2], 'trained' .. unit, string.format('%.0f', -number))
  redis.call('HINCRBY', KEYS[2], 'rolled_back' .. unit, string.format('%.0f', number))
end
return 'OK'
