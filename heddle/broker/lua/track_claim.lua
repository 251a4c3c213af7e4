-- Be, or go on being, the one process that hands an experiment's metrics on to a tracker; what it says of itself.
-- Runs when the memory is full: HDEL of nothing comes first.
-- KEYS  1 ctl (hash)  2 trackers (hash)
-- ARGV  1 tracker  2 process, "" to leave  3 ms until another may be it  4 JSON for people  5 who leaves
-- Reply "OK" | "GONE" | the process that is it
if redis.call('EXISTS', KEYS[1]) == 0 then
  return 'GONE'
end
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
local held = redis.call('HMGET', KEYS[2], ARGV[1] .. ':by', ARGV[1] .. ':until')
redis.call('HDEL', KEYS[2], '-')
if held[1] and held[1] ~= ARGV[2] and held[1] ~= ARGV[5] and tonumber(held[2] or '0') > now then
  return held[1]
end
local till = ARGV[2] == '' and 0 or now + tonumber(ARGV[3])
redis.call('HSET', KEYS[2], ARGV[1] .. ':by', ARGV[2], ARGV[1] .. ':until', string.format('%.0f', till),
  ARGV[1] .. ':told', ARGV[4])
return 'OK'
