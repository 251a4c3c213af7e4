-- Write anew a number that somebody's hand has made none, as the leader, unless somebody did meanwhile.
-- Runs when the memory is full: HDEL of nothing comes first.
-- KEYS  1 ctl (hash)  2 whose field it is (hash)
-- ARGV  1 leader epoch  2 field  3 what was found there  4 what to write
-- Reply {"OK", "1" written | "0" something else is there now} | {"FENCED"} | {"GONE"}
local refusal = refused()
if refusal then
  return {refusal}
end
if redis.call('HGET', KEYS[2], ARGV[2]) ~= ARGV[3] then
  return {'OK', '0'}
end
redis.call('HDEL', KEYS[2], '-')
redis.call('HSET', KEYS[2], ARGV[2], ARGV[4])
return {'OK', '1'}
