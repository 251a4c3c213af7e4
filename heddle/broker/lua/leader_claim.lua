-- Become the leading coordinator, if nobody's lease runs; the leader itself gets the same epoch again, unless that was
-- fenced: the broker forgot a later leader, who wrote its epoch before it noticed.
-- An epoch above the highest that a leader may have is somebody's hand's: epochs begin anew.
-- An `until` further ahead than ten leases means the server's clock went back: it counts as over.
-- Runs when the memory is full: PERSIST comes first.
-- KEYS  1 coordinator (hash)
-- ARGV  1 id, unique per process  2 ttl ms  3 epoch that this one shall be above  4 the highest there may be
-- Reply {"OK", epoch} | {"HELD", epoch, id, ms left}
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
local lease = redis.call('HMGET', KEYS[1], 'id', 'epoch', 'until')
local ttl, epoch, left = tonumber(ARGV[2]), whole(lease[2]), whole(lease[3]) - now
if epoch > tonumber(ARGV[4]) then
  epoch = 0
end
local runs = left > 0 and left <= 10 * ttl
if runs and lease[1] ~= ARGV[1] then
  return {'HELD', string.format('%.0f', epoch), lease[1], string.format('%.0f', left)}
end
local above = tonumber(ARGV[3])
if not runs or epoch <= above then
  epoch = math.max(epoch + 1, now, above + 1)
end
local shown = string.format('%.0f', epoch)
redis.call('PERSIST', KEYS[1])
redis.call('HSET', KEYS[1], 'id', ARGV[1], 'epoch', shown, 'until', string.format('%.0f', now + ttl))
return {'OK', shown}
