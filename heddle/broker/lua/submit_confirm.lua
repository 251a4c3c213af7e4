-- Make a submitted experiment last: take the TTL off what submit created. Runs when the memory is full.
-- KEYS  1 ctl (hash)  2 spec (hash)  3 status (hash)  4 experience (stream)
-- ARGV  1 its entry id in the queue, "" to leave the one noted
-- Reply "OK" | "GONE": it was removed or its TTL had passed
if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('EXISTS', KEYS[2]) == 0 then
  return 'GONE'
end
for i = 1, 4 do
  redis.call('PERSIST', KEYS[i])
end
if ARGV[1] ~= '' then
  redis.call('HSET', KEYS[3], 'queue_entry', ARGV[1])
end
return 'OK'
