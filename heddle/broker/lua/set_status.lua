-- Write an experiment's state, as the leader. completed, stopped and failed are absorbing, and set command stop.
-- An end is written only while what it was decided on holds: a broker that was killed since may be back before it.
-- Runs when the memory is full: HDEL of nothing comes first.
-- KEYS  1 ctl (hash)  2 status (hash)  3 flow (hash)  4 due (sorted set)  5 seat (hash); by name: the shards of due
-- ARGV  1 leader epoch  2 state  3 reason  4 result json, "" to keep  5 news channel
--       6 outcome that its trainer had told, "" for none  7 batches in flight then; "" for an end that asks for nothing
--       8 what comes before the index in a shard's key
-- Reply {"OK" | "ENDED" | "STALE": look again | "FENCED" | "GONE", state now}
if redis.call('EXISTS', KEYS[1]) == 0 then
  return {'GONE', ''}
end
local ctl = redis.call('HMGET', KEYS[1], 'leader_epoch', 'command', 'outcome', 'rev', 'shards')
local old = redis.call('HGET', KEYS[2], 'state') or ''
if tonumber(ARGV[1]) < whole(ctl[1]) then
  return {'FENCED', old}
end
-- A rev that is none, by somebody's hand, is begun anew: what has ended lets its workers go, whatever ctl holds.
local rev = string.format('%.0f', whole(ctl[4]) + 1)
local ends = {completed = true, stopped = true, failed = true}
if ends[old] then
  if ctl[2] ~= 'stop' then
    redis.call('HDEL', KEYS[1], '-')
    redis.call('HSET', KEYS[1], 'command', 'stop', 'rev', rev)
    redis.call('PUBLISH', ARGV[5], 'command stop')
  end
  return {'ENDED', old}
end
local left = tonumber(ARGV[7])
if left then
  local is_told = ctl[2] == 'stop' and (ctl[3] or '') == ARGV[6]
  local is_held = (redis.call('HGET', KEYS[5], 'trainer') or '') ~= ''
  for _, shard in ipairs(redis.call('ZRANGE', KEYS[4], 0, -1)) do -- by hand there may be more than shards
    is_held = is_held or redis.call('HGET', ARGV[8] .. shard, 'state') == 'leased'
  end
  if not is_told or is_held or whole(redis.call('HGET', KEYS[3], 'entries')) > left then
    return {'STALE', old}
  end
end
local t = redis.call('TIME')
local now = string.format('%.0f', tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000))
redis.call('HDEL', KEYS[1], '-')
redis.call('HSET', KEYS[1], 'leader_epoch', ARGV[1])
redis.call('HSET', KEYS[2], 'state', ARGV[2], 'reason', ARGV[3])
if old ~= ARGV[2] then
  redis.call('HSET', KEYS[2], 'since', now)
end
if ARGV[2] == 'running' then
  redis.call('HSETNX', KEYS[2], 'started', now)
end
if ARGV[4] ~= '' then
  redis.call('HSET', KEYS[2], 'result', ARGV[4])
end
if not ends[ARGV[2]] then
  return {'OK', ARGV[2]}
end
redis.call('HSET', KEYS[2], 'ended', now)
if whole(ctl[5]) > 0 then -- whoever leads drops them, see snapshots_drop.lua
  redis.call('HSET', KEYS[1], 'snapshots_from', '0')
end
if (ctl[3] or '') == '' then
  redis.call('HSET', KEYS[1], 'outcome', ARGV[2], 'reason', ARGV[3])
end
if ctl[2] ~= 'stop' then
  redis.call('HSET', KEYS[1], 'command', 'stop', 'rev', rev)
  redis.call('PUBLISH', ARGV[5], 'command stop')
end
return {'OK', ARGV[2]}
