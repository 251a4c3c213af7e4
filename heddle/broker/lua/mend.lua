-- Make a stream of experience anew that can take no more entries, since somebody added one with the highest id there
-- is: the accepted entries under their ids. The trainer's group begins anew, for all that is there is not settled, and
-- it knows what it has in hand; a tap goes on where it stood.
-- Runs when the memory is full: DEL comes first.
-- KEYS  1 ctl (hash)  2 experience (stream)  3 flow (hash); by name: accepted (hash)
-- ARGV  1 the trainer's group
-- Reply {"OK", entries that were left out} | {"GONE"}
if redis.call('EXISTS', KEYS[1]) == 0 then
  return {'GONE'}
end
local known = {}
for _, id in ipairs(redis.call('HVALS', (string.gsub(KEYS[3], 'flow$', 'accepted')))) do
  known[id] = true
end
local highest = '18446744073709551615-18446744073709551615'
local entries, groups, left_out, top = redis.call('XRANGE', KEYS[2], '-', '+'), {}, 0, '0'
for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[2])) do
  local fact = {}
  for i = 1, #group, 2 do
    fact[group[i]] = group[i + 1]
  end
  groups[fact['name']] = fact['last-delivered-id']
end
redis.call('DEL', KEYS[2])
for _, entry in ipairs(entries) do
  if known[entry[1]] then
    redis.call('XADD', KEYS[2], entry[1], unpack(entry[2]))
    top = entry[1]
  else
    left_out = left_out + 1
  end
end
for name, last in pairs(groups) do
  local from = name == ARGV[1] and '0' or (last == highest and top or last)
  redis.call('XGROUP', 'CREATE', KEYS[2], name, from, 'MKSTREAM')
end
if left_out > 0 then
  redis.call('HINCRBY', KEYS[3], 'foreign', left_out)
end
return {'OK', left_out}
