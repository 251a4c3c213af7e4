-- Stop leading now; the epoch stays and its next value is higher, and the id is cleared so that no late renew counts.
-- Runs when the memory is full: HDEL comes first.
-- KEYS  1 coordinator (hash)
-- ARGV  1 id  2 epoch
-- Reply 1 released | 0 it was not the caller's any more
local lease = redis.call('HMGET', KEYS[1], 'id', 'epoch')
if lease[1] ~= ARGV[1] or tonumber(lease[2] or '0') ~= tonumber(ARGV[2]) then
  return 0
end
redis.call('HDEL', KEYS[1], 'id', 'until')
return 1
