-- End an experiment, as the holder of its seat: command stop, outcome, reason, result. The first outcome stays.
-- Runs when the memory is full: HDEL of nothing comes first.
-- KEYS  1 ctl (hash)  2 status (hash)
-- ARGV  1 seat epoch  2 outcome (completed | stopped | failed)  3 reason  4 result json  5 news channel
-- Reply {"OK" | "ENDED" | "FENCED" | "GONE", outcome now}
if redis.call('EXISTS', KEYS[1]) == 0 then
  return {'GONE', ''}
end
local ctl = redis.call('HMGET', KEYS[1], 'seat_epoch', 'outcome', 'command', 'rev')
if tonumber(ctl[1] or '0') ~= tonumber(ARGV[1]) then
  return {'FENCED', ctl[2] or ''}
end
if (ctl[2] or '') ~= '' then
  return {'ENDED', ctl[2]}
end
redis.call('HDEL', KEYS[1], '-')
redis.call('HSET', KEYS[1], 'outcome', ARGV[2], 'reason', ARGV[3])
redis.call('HSET', KEYS[2], 'result', ARGV[4])
if ctl[3] ~= 'stop' then
  redis.call('HSET', KEYS[1], 'command', 'stop', 'rev', string.format('%.0f', whole(ctl[4]) + 1))
  redis.call('PUBLISH', ARGV[5], 'command stop')
end
return {'OK', ARGV[2]}
