-- Create an experiment's shards, as the leader: queued, without a ticket. Those that exist are not touched.
-- KEYS  1 ctl (hash)  2 queued (hash)  3.. shards (hashes)
-- ARGV  1 leader epoch  2.. index, kind (train | eval), first env, number of envs, of each shard
-- Reply {"OK", number created} | {"FENCED"} | {"GONE"}
if redis.call('EXISTS', KEYS[1]) == 0 then
  return {'GONE'}
end
local ctl = redis.call('HMGET', KEYS[1], 'leader_epoch', 'shards')
if tonumber(ARGV[1]) < whole(ctl[1]) then
  return {'FENCED'}
end
local t = redis.call('TIME')
local now = string.format('%.0f', tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000))
local created, count = 0, whole(ctl[2])
for i = 3, #KEYS do
  local at = 2 + (i - 3) * 4
  count = math.max(count, tonumber(ARGV[at]) + 1)
  if redis.call('EXISTS', KEYS[i]) == 0 then
    redis.call('HSET', KEYS[i], 'state', 'queued', 'kind', ARGV[at + 1], 'first_env', ARGV[at + 2],
      'num_envs', ARGV[at + 3], 'worker', '', 'epoch', '0', 'nonce', '', 'attempts', '0', 'seq', '0',
      'claim_seq', '0', 'stepping', '0', 'given', '0', 'steps', '0', 'parked', '0', 'deaths', '0', 'error', '', 'since', now)
    redis.call('HSET', KEYS[2], ARGV[at], '- ' .. now)
    created = created + 1
  end
end
redis.call('HSET', KEYS[1], 'leader_epoch', ARGV[1], 'shards', string.format('%.0f', count))
return {'OK', created}
