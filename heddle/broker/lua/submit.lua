-- Create an experiment's own keys, with a TTL until submit_confirm: a client that dies half way leaves nothing.
-- KEYS  1 spec (hash)  2 ctl (hash)  3 status (hash)  4 experience (stream)
-- ARGV  1 ttl ms  2 trainer group  3 number of spec pairs  4.. spec field, value ..., then ctl field, value ...
-- Reply {"OK", created ms} | {"HALF" (not confirmed yet) | "EXISTS", created ms, sha256}
if redis.call('EXISTS', KEYS[1]) == 1 then
  local old = redis.call('HMGET', KEYS[1], 'created', 'sha256')
  return {redis.call('PTTL', KEYS[1]) > 0 and 'HALF' or 'EXISTS', old[1] or '0', old[2] or ''}
end
local t = redis.call('TIME')
local now = string.format('%.0f', tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000))
local spec_end = 3 + 2 * tonumber(ARGV[3])
redis.call('HSET', KEYS[1], 'created', now)
for i = 4, spec_end, 2 do
  redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
end
for i = spec_end + 1, #ARGV, 2 do
  redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
end
redis.call('HSET', KEYS[3], 'state', 'queued', 'since', now, 'reason', '')
if redis.call('EXISTS', KEYS[4]) == 0 then
  redis.call('XGROUP', 'CREATE', KEYS[4], ARGV[2], '0', 'MKSTREAM')
end
for i = 1, 4 do
  redis.call('PEXPIRE', KEYS[i], ARGV[1])
end
return {'OK', now}
