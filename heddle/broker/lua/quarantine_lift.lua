-- Lift a shard's quarantine: queued again, its deaths and failures forgotten, its last error kept. The leader sees `lifts` rise and
-- counts it anew. Runs when the memory is full: HDEL of nothing comes first.
-- KEYS  1 ctl (hash)  2 status (hash)  3 shard (hash)  4 queued (hash)
-- ARGV  1 shard index
-- Reply {"OK" | "NOT" (not quarantined) | "ENDED" (over, or told to stop) | "NONE" (no such shard) | "GONE", what it is}
local ctl = redis.call('HMGET', KEYS[1], 'command', 'lifts')
if not ctl[1] then
  return {'GONE', ''}
end
local s = redis.call('HMGET', KEYS[3], 'state', 'worker')
if not s[1] then
  return {'NONE', ''}
end
local experiment = redis.call('HGET', KEYS[2], 'state') or 'queued'
if experiment == 'completed' or experiment == 'stopped' or experiment == 'failed' then
  return {'ENDED', experiment}
end
if ctl[1] == 'stop' then
  return {'ENDED', 'stopping'}
end
if s[1] ~= 'quarantined' then
  return {'NOT', s[1] == 'leased' and 'played by ' .. s[2] or s[1]}
end
local t = redis.call('TIME')
local now = string.format('%.0f', tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000))
redis.call('HDEL', KEYS[1], '-')
redis.call('HSET', KEYS[1], 'lifts', string.format('%.0f', whole(ctl[2]) + 1))
redis.call('HSET', KEYS[3], 'state', 'queued', 'deaths', '0', 'stuck', '', 'failures', '', 'stepping', '0', 'since', now)
redis.call('HDEL', KEYS[3], 'suspect', 'company')
redis.call('HSET', KEYS[4], ARGV[1], '- ' .. now)
return {'OK', 'queued'}
