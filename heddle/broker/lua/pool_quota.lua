-- Write a pool's quota and live count, as the leader. Runs when the memory is full: PERSIST comes first.
-- KEYS  1 pool (hash)
-- ARGV  1 leader epoch  2 floor  3 ceil  4 workers below floor  5 live workers
-- Reply "OK" | "FENCED"
if tonumber(ARGV[1]) < whole(redis.call('HGET', KEYS[1], 'leader_epoch')) then
  return 'FENCED'
end
redis.call('PERSIST', KEYS[1])
redis.call('HSET', KEYS[1], 'leader_epoch', ARGV[1], 'floor', ARGV[2], 'ceil', ARGV[3], 'below', ARGV[4], 'live', ARGV[5])
return 'OK'
