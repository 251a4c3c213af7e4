-- Give an experiment name to a new id, if it still belongs to the id the caller looked at.
-- KEYS  1 name (hash)
-- ARGV  1 id the caller saw ("" when none)  2 new id  3 sha256 of the new spec
-- Reply {"OK", new id, sha256} | {"LOST", id, sha256} of who holds the name now
local held = redis.call('HMGET', KEYS[1], 'id', 'sha256')
local id = held[1] or ''
if id ~= ARGV[1] and id ~= ARGV[2] then
  return {'LOST', id, held[2] or ''}
end
redis.call('HSET', KEYS[1], 'id', ARGV[2], 'sha256', ARGV[3])
return {'OK', ARGV[2], ARGV[3]}
