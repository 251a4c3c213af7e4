-- Leave the seat: raise the fence by one, so that no late call of the leaver's counts, and delete the seat.
-- Runs when the memory is full: UNLINK comes first.
-- KEYS  1 ctl (hash)  2 seat (hash with TTL)  3 trainer (hash): who sat last, for people
-- ARGV  1 epoch  2 how its holder ended: left | failed | died
-- Reply 1 released | 0 it was not the caller's any more
local fence = tonumber(redis.call('HGET', KEYS[1], 'seat_epoch') or '-1')
if fence ~= tonumber(ARGV[1]) then
  return 0
end
redis.call('UNLINK', KEYS[2])
redis.call('HSET', KEYS[1], 'seat_epoch', string.format('%.0f', fence + 1))
local t = redis.call('TIME')
redis.call('HSET', KEYS[3], 'left', string.format('%.0f', tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)),
  'how', ARGV[2] or 'left')
return 1
