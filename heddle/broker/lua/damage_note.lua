-- Note that a verb met a key of the experiment that is of another kind than ours; the leader sees it in ctl and looks.
-- Runs when the memory is full: HDEL of nothing comes first.
-- KEYS  1 ctl (hash)
-- ARGV  1 what was said of it
-- Reply {"OK"} | {"GONE"}
if redis.call('EXISTS', KEYS[1]) == 0 then
  return {'GONE'}
end
redis.call('HDEL', KEYS[1], '-')
redis.call('HSETNX', KEYS[1], 'damaged', ARGV[1])
return {'OK'}
