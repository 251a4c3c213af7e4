-- Make a consumer group of an experiment's stream, and the stream, unless it is there or the experiment was removed.
-- Runs when the memory is full, for a trainer that begins then must free some: HDEL of nothing comes first.
-- KEYS  1 ctl (hash)  2 experience (stream)
-- ARGV  1 group  2 where it starts: "0" | "$"
-- Reply "OK" made | "EXISTS" | "GONE"
if redis.call('EXISTS', KEYS[1]) == 0 then
  return 'GONE'
end
redis.call('HDEL', KEYS[1], '-')
local made = redis.pcall('XGROUP', 'CREATE', KEYS[2], ARGV[1], ARGV[2], 'MKSTREAM')
if made['err'] and string.find(made['err'], 'BUSYGROUP', 1, true) then
  return 'EXISTS'
end
return made
