-- Set an entry aside for good, as the holder of the seat, with the reason; the oldest make room when there are too many.
-- Runs when the memory is full: XACK comes first.
-- KEYS  1 ctl (hash)  2 experience (stream)  3 flow (hash)  4 dead (stream)  5 blob (string); by name: blobs made room for
-- ARGV  1 seat epoch  2 group  3 entry id  4 bytes  5 steps  6 "1" to keep the blob  7 most entries  8 most bytes
--       9 reason  10.. field, value of the pointer
-- Reply {"OK", 1 set aside | 0 it was not there} | {"FENCED"} | {"GONE"}
local seat = redis.call('HMGET', KEYS[1], 'command', 'seat_epoch')
if not seat[1] then
  return {'GONE'}
end
if tonumber(seat[2] or '0') ~= tonumber(ARGV[1]) then
  return {'FENCED'}
end
local function add(field, number)
  return redis.call('HINCRBY', KEYS[3], field, string.format('%.0f', number))
end
redis.call('XACK', KEYS[2], ARGV[2], ARGV[3])
if redis.call('XDEL', KEYS[2], ARGV[3]) == 0 then
  return {'OK', 0}
end
add('entries', -1)
add('bytes', -tonumber(ARGV[4]))
add('steps', -tonumber(ARGV[5]))
add('dead', 1)
add('dead_steps', ARGV[5])
local kept, most, most_bytes = '0', tonumber(ARGV[7]), tonumber(ARGV[8])
if ARGV[6] == '1' and tonumber(ARGV[4]) <= most_bytes and redis.call('EXISTS', KEYS[5]) == 1 then
  kept = ARGV[4]
else
  redis.call('UNLINK', KEYS[5])
end
local bytes = add('dead_bytes', kept)
while redis.call('XLEN', KEYS[4]) >= most or bytes > most_bytes do
  local oldest = redis.call('XRANGE', KEYS[4], '-', '+', 'COUNT', '1')[1]
  if not oldest then
    break
  end
  local fact = {}
  for i = 1, #oldest[2], 2 do
    fact[oldest[2][i]] = oldest[2][i + 1]
  end
  redis.call('XDEL', KEYS[4], oldest[1])
  redis.call('UNLINK', fact['blob'])
  bytes = add('dead_bytes', -tonumber(fact['kept_bytes']))
end
redis.call('XADD', KEYS[4], '*', 'reason', ARGV[9], 'entry', ARGV[3], 'kept_bytes', kept, unpack(ARGV, 10))
return {'OK', 1}
