-- Move a dead batch back into the stream of experience, under an identity of its own, and from dead to in flight in the
-- counters. Runs when the memory is full: XDEL comes first.
-- KEYS  1 ctl (hash)  2 dead  3 experience (streams)  4 flow  5 shard (hashes)  6 the bytes as they are kept
--       7 blob (strings); by name: accepted (hash)
-- ARGV  1 id in the dead stream  2 new identity  3 new epoch  4 bytes  5 steps  6.. field, value of the pointer
-- Reply {"OK", entry id} | {"GONE"} | {"STOPPED"} | {"FULL"} | {"NONE"} batch or bytes gone | {"AGAIN"} epoch is taken
local ctl = redis.call('HMGET', KEYS[1], 'command', 'max_entries', 'max_bytes')
if not ctl[1] then
  return {'GONE'}
end
if ctl[1] == 'stop' then
  return {'STOPPED'}
end
local size = tonumber(ARGV[4])
local flow = redis.call('HMGET', KEYS[4], 'entries', 'bytes')
local entries, bytes = tonumber(flow[1] or '0'), tonumber(flow[2] or '0')
if entries > 0 and (entries >= tonumber(ctl[2] or '1024') or bytes + size > tonumber(ctl[3] or '536870912')) then
  return {'FULL'}
end
if tonumber(redis.call('HGET', KEYS[5], 'replay_epoch') or '0') >= tonumber(ARGV[3]) then
  return {'AGAIN'}
end
local entry = redis.call('XRANGE', KEYS[2], ARGV[1], ARGV[1])[1]
if not entry or redis.pcall('STRLEN', KEYS[6]) ~= size then
  return {'NONE'}
end
redis.call('XDEL', KEYS[2], ARGV[1])
if KEYS[6] ~= KEYS[7] then
  redis.call('RENAME', KEYS[6], KEYS[7])
end
redis.call('PERSIST', KEYS[7])
local id = redis.call('XADD', KEYS[3], '*', unpack(ARGV, 6))
redis.call('HSET', (string.gsub(KEYS[4], 'flow$', 'accepted')), ARGV[2], id)
redis.call('HSET', KEYS[5], 'replay_epoch', ARGV[3])
local steps = ARGV[5]
local moved = {dead = '-1', dead_steps = '-' .. steps, dead_bytes = '-' .. ARGV[4], entries = '1', bytes = ARGV[4], steps = steps, replayed = '1'}
for field, number in pairs(moved) do
  redis.call('HINCRBY', KEYS[4], field, number)
end
return {'OK', id}
