-- Write how many train and eval shards count (the sync quorum), as the leader. Runs when the memory is full.
-- KEYS  1 ctl (hash)
-- ARGV  1 leader epoch  2 active train shards  3 active eval shards
-- Reply "OK" | "FENCED" | "GONE"
if redis.call('EXISTS', KEYS[1]) == 0 then
  return 'GONE'
end
if tonumber(ARGV[1]) < whole(redis.call('HGET', KEYS[1], 'leader_epoch')) then
  return 'FENCED'
end
redis.call('HDEL', KEYS[1], '-')
redis.call('HSET', KEYS[1], 'leader_epoch', ARGV[1], 'active', ARGV[2], 'active_eval', ARGV[3])
return 'OK'
