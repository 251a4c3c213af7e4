-- Make a stream anew that can take no more entries, since somebody added one with the highest id there is: what was in
-- it under new ids, in order, its groups from the start. Runs when the memory is full: DEL comes first.
-- KEYS  1 stream
-- ARGV  none
-- Reply how many entries it has now
local highest = '18446744073709551615-'
local entries, groups = redis.call('XRANGE', KEYS[1], '-', '+'), redis.call('XINFO', 'GROUPS', KEYS[1])
redis.call('DEL', KEYS[1])
for _, entry in ipairs(entries) do
  if string.sub(entry[1], 1, #highest) ~= highest then
    redis.call('XADD', KEYS[1], '*', unpack(entry[2]))
  end
end
for _, group in ipairs(groups) do
  redis.call('XGROUP', 'CREATE', KEYS[1], group[2], '0', 'MKSTREAM')
end
return redis.call('EXISTS', KEYS[1]) == 1 and redis.call('XLEN', KEYS[1]) or 0
