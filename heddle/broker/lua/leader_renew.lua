-- Keep leading; also when the lease is over and nobody took it. Runs when the memory is full: PERSIST comes first.
-- KEYS  1 coordinator (hash)
-- ARGV  1 id  2 epoch  3 ttl ms
-- Reply 1 kept | 0 lost
local lease = redis.call('HMGET', KEYS[1], 'id', 'epoch')
if lease[1] ~= ARGV[1] or tonumber(lease[2] or '0') ~= tonumber(ARGV[2]) then
  return 0
end
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
redis.call('PERSIST', KEYS[1])
redis.call('HSET', KEYS[1], 'until', string.format('%.0f', now + tonumber(ARGV[3])))
return 1
