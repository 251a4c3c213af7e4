-- Take the trainer's seat, if nobody living holds it, and raise the fence in ctl at the same moment.
-- The same trainer gets the same epoch again. The shared memory that the one before offered is void.
-- Runs when the memory is full: HDEL comes first.
-- KEYS  1 ctl (hash)  2 seat (hash with TTL)  3 trainer (hash): who sat last, how many did, and how they ended, for people
-- ARGV  1 trainer, unique per process  2 ttl ms  3 epoch that this one shall be above
-- Reply {"OK", epoch} | {"HELD", epoch, trainer, ms left} | {"GONE"}
if redis.call('EXISTS', KEYS[1]) == 0 then
  return {'GONE'}
end
local seat = redis.call('HMGET', KEYS[2], 'trainer', 'epoch')
local fence = tonumber(redis.call('HGET', KEYS[1], 'seat_epoch') or '0')
if seat[1] and seat[1] ~= ARGV[1] and tonumber(seat[2]) == fence then
  return {'HELD', seat[2], seat[1], redis.call('PTTL', KEYS[2])}
end
if seat[1] == ARGV[1] and tonumber(seat[2]) == fence then
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
  return {'OK', seat[2]}
end
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
local epoch = string.format('%.0f', math.max(fence + 1, now, tonumber(ARGV[3]) + 1))
redis.call('HDEL', KEYS[1], 'plane')
redis.call('HSET', KEYS[1], 'seat_epoch', epoch)
redis.call('HSET', KEYS[2], 'trainer', ARGV[1], 'epoch', epoch)
redis.call('PEXPIRE', KEYS[2], ARGV[2])
local before = redis.call('HMGET', KEYS[3], 'trainer', 'left', 'how')
if before[1] then
  local how = (before[2] or '') ~= '' and (before[3] or 'left') or 'silent' -- whose time ran out said nothing
  redis.call('HINCRBY', KEYS[3], 'ended_' .. how, 1)
end
redis.call('HSET', KEYS[3], 'trainer', ARGV[1], 'since', string.format('%.0f', now), 'seen', string.format('%.0f', now),
  'left', '', 'doing', 'start', 'doing_ms', '0')
redis.call('HINCRBY', KEYS[3], 'seats', 1)
return {'OK', epoch}
