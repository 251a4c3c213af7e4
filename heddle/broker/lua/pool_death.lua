-- Count a worker that ended by itself, for people. Runs when the memory is full: HDEL of nothing comes first.
-- KEYS  1 pool (hash)
-- ARGV  1 field to raise
-- Reply how many that makes
redis.call('HDEL', KEYS[1], '-')
return redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
