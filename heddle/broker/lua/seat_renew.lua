-- Keep the seat; revive it when its TTL passed and nobody took it. Runs when the memory is full: PEXPIRE comes first.
-- KEYS  1 ctl (hash)  2 seat (hash with TTL)  3 trainer (hash): who sat last, for people
-- ARGV  1 trainer  2 epoch  3 ttl ms  4 what it does  5 ms since when
-- Reply "OK" | "LOST" | "GONE"
if redis.call('EXISTS', KEYS[1]) == 0 then
  return 'GONE'
end
if tonumber(redis.call('HGET', KEYS[1], 'seat_epoch') or '0') ~= tonumber(ARGV[2]) then
  return 'LOST'
end
if redis.call('PEXPIRE', KEYS[2], ARGV[3]) == 0 then
  redis.call('HSET', KEYS[2], 'trainer', ARGV[1], 'epoch', ARGV[2])
  redis.call('PEXPIRE', KEYS[2], ARGV[3])
end
local t = redis.call('TIME')
redis.call('HSET', KEYS[3], 'trainer', ARGV[1], 'left', '', 'doing', ARGV[4], 'doing_ms', ARGV[5],
  'seen', string.format('%.0f', tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)))
return 'OK'
