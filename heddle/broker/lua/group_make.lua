-- Make a consumer group of an experiment's stream, and the stream, unless it is there or the experiment was removed.
-- Refused when the memory is full.
-- KEYS  1 ctl (hash)  2 experience (stream)
-- ARGV  1 group  2 where it starts: "0" | "$"
-- Reply "OK" made | "EXISTS" | "GONE"
if redis.call('EXISTS', KEYS[1]) == 0 then
  return 'GONE'
end
local made = redis.pcall('XGROUP', 'CREATE', KEYS[2], ARGV[1], ARGV[2], 'MKSTREAM')
if made['err'] and string.find(made['err'], 'BUSYGROUP', 1, true) then
  return 'EXISTS'
end
return made
