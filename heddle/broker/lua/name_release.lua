-- Free an experiment name, if it still points to this id.
-- KEYS  1 name (hash)
-- ARGV  1 id
-- Reply 1 freed | 0 it belongs to another
if redis.call('HGET', KEYS[1], 'id') ~= ARGV[1] then
  return 0
end
return redis.call('DEL', KEYS[1])
