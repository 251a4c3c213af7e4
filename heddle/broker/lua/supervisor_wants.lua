-- Note how many workers a supervisor was started with, and what its host has. Runs when the memory is full: HDEL comes
-- first.
-- KEYS  1 pool (hash)
-- ARGV  1 field of that supervisor  2 workers  3 field of its host  4 what that has
-- Reply the pool's fields and values
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4])
return redis.call('HGETALL', KEYS[1])
