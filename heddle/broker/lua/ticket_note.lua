-- Note the ticket that was issued for a shard, if it still waits for a worker.
-- KEYS  1 ctl (hash)  2 shard (hash)  3 queued (hash)
-- ARGV  1 shard index  2 id of its new ticket
-- Reply {"OK", id of the ticket it replaces, "" for none} | {"NO", ""}: no longer queued, or gone
if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('HGET', KEYS[2], 'state') ~= 'queued' then
  return {'NO', ''}
end
local old = redis.call('HGET', KEYS[3], ARGV[1])
local since = old and string.match(old, ' (%d+)$')
if not since then
  local t = redis.call('TIME')
  since = string.format('%.0f', tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000))
end
redis.call('HSET', KEYS[3], ARGV[1], ARGV[2] .. ' ' .. since)
local replaced = old and string.match(old, '^%S+') or '-'
return {'OK', replaced == '-' and '' or replaced}
