-- Drop the snapshots of an ended experiment, those of a batch of shards a call, as the leader. An experiment that has not
-- ended, or not any more since a broker went back to before its end, keeps them: its shards go on from there.
-- Which are left is in ctl: set_status.lua writes `snapshots_from` with the end, and here it moves on until it goes.
-- Runs when the memory is full: HDEL of nothing comes first.
-- KEYS  1 ctl (hash)  2 status (hash)  3.. shards (hashes), from ARGV 2 on; by name: their snapshots (strings)
-- ARGV  1 leader epoch  2 index of the first of these shards
-- Reply {"OK", 1 while some are left, else 0} | {"KEPT"}: not ended, or another batch is due | {"FENCED"} | {"GONE"}
local refusal = refused()
if refusal then
  return {refusal}
end
local ctl = redis.call('HMGET', KEYS[1], 'shards', 'snapshots_from')
local ends = {completed = true, stopped = true, failed = true}
local first = tonumber(ARGV[2])
if not ends[redis.call('HGET', KEYS[2], 'state') or ''] or not ctl[2] or whole(ctl[2]) ~= first then
  return {'KEPT'}
end
redis.call('HDEL', KEYS[1], '-')
for i = 3, #KEYS do
  local snapshot = redis.pcall('HGET', KEYS[i], 'snapshot') -- an error where somebody put something else there
  if type(snapshot) == 'string' then
    redis.call('UNLINK', snapshot)
    redis.call('HDEL', KEYS[i], 'snapshot')
  end
end
first = first + #KEYS - 2
if first < whole(ctl[1]) then
  redis.call('HSET', KEYS[1], 'snapshots_from', string.format('%.0f', first))
  return {'OK', 1}
end
redis.call('HDEL', KEYS[1], 'snapshots_from')
return {'OK', 0}
