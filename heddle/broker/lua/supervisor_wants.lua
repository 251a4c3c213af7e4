-- Note how many workers a supervisor was started with. Runs when the memory is full: HDEL comes first.
-- KEYS  1 pool (hash)
-- ARGV  1 field of that supervisor  2 workers
-- Reply the pool's fields and values
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return redis.call('HGETALL', KEYS[1])
