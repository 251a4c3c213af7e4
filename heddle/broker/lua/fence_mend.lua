-- Write a leader's epoch anew where somebody's hand wrote one that no leader ever has, and that leaves none above it.
-- Runs when the memory is full: HDEL of nothing comes first.
-- KEYS  1 whose field it is: an experiment's ctl, or a pool (hash)
-- ARGV  1 the caller's epoch  2 the highest that a leader may have
-- Reply what was found there | "" it is none of those
local found = redis.call('HGET', KEYS[1], 'leader_epoch')
if whole(found) <= tonumber(ARGV[2]) then
  return ''
end
redis.call('HDEL', KEYS[1], '-')
redis.call('HSET', KEYS[1], 'leader_epoch', ARGV[1])
return found
