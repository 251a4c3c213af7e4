-- Add one update's metrics. XTRIM both caps the stream and lets this run when the memory is full.
-- KEYS  1 ctl (hash)  2 metrics (stream)
-- ARGV  1 seat epoch of the trainer, "" for the coordinator  2 most entries  3.. field, value ...
-- Reply {"OK", entry id} | {"FENCED"} | {"GONE"}
if redis.call('EXISTS', KEYS[1]) == 0 then
  return {'GONE'}
end
if ARGV[1] ~= '' and tonumber(redis.call('HGET', KEYS[1], 'seat_epoch') or '0') ~= tonumber(ARGV[1]) then
  return {'FENCED'}
end
local cut = redis.call('XTRIM', KEYS[2], 'MAXLEN', '~', ARGV[2])
if cut > 0 then
  cut = cut + whole(redis.call('HGET', KEYS[1], 'metrics_cut'))
  redis.call('HSET', KEYS[1], 'metrics_cut', string.format('%.0f', cut))
end
return {'OK', redis.call('XADD', KEYS[2], '*', unpack(ARGV, 3))}
