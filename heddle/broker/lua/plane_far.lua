-- A reader that cannot map the trainer's shared memory is there: for a while producers give their bytes to the server.
-- Runs when the memory is full: HDEL of nothing comes first.
-- KEYS  1 ctl (hash)
-- ARGV  1 ms for which this holds
-- Reply "OK" | "GONE"
if redis.call('EXISTS', KEYS[1]) == 0 then
  return 'GONE'
end
local t = redis.call('TIME')
local till = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000) + tonumber(ARGV[1])
redis.call('HDEL', KEYS[1], '-')
if till > whole(redis.call('HGET', KEYS[1], 'far')) then
  redis.call('HSET', KEYS[1], 'far', string.format('%.0f', till))
end
return 'OK'
