-- Keep one failure of a shard for people to look at; the oldest makes room, and only the newest can be played again.
-- Refused when the memory is full: HSET comes first, for nothing depends on it.
-- KEYS  1 ctl (hash)  2 failure (hash)
-- ARGV  1 how many are kept  2.. field, value ...
-- Reply {"OK", its number} | {"GONE"}
if redis.call('EXISTS', KEYS[1]) == 0 then
  return {'GONE'}
end
local last = tonumber(redis.call('HGET', KEYS[2], 'last') or '0')
local before, number = string.format('%.0f:', last), string.format('%.0f', last + 1)
local old = string.format('%.0f:', last + 1 - tonumber(ARGV[1]))
local t = redis.call('TIME')
redis.call('HSET', KEYS[2], 'last', number,
  number .. ':time', string.format('%.0f', tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)))
for i = 2, #ARGV, 2 do
  redis.call('HSET', KEYS[2], number .. ':' .. ARGV[i], ARGV[i + 1])
end
redis.call('HDEL', KEYS[2], before .. 'actions', before .. 'form', before .. 'snapshot', old .. 'record', old .. 'time')
return {'OK', number}
