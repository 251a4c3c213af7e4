-- Note which entries the holder of the seat is about to load, in place of those noted before: the suspects, should it
-- die of them. Runs when the memory is full: UNLINK comes first.
-- KEYS  1 ctl (hash)  2 loading (hash)
-- ARGV  1 seat epoch  2 "1" when each is loaded alone | "0"  3.. entry ids, none to clear
-- Reply "OK" | "FENCED" | "GONE"
local seat = redis.call('HMGET', KEYS[1], 'command', 'seat_epoch')
if not seat[1] then
  return 'GONE'
end
if tonumber(seat[2] or '0') ~= tonumber(ARGV[1]) then
  return 'FENCED'
end
redis.call('UNLINK', KEYS[2])
if #ARGV == 2 then
  return 'OK'
end
redis.call('HSET', KEYS[2], 'seat_epoch', ARGV[1])
for i = 3, #ARGV do
  redis.call('HSET', KEYS[2], ARGV[i], ARGV[2])
end
return 'OK'
