-- Note in a sorted set that a worker or supervisor is here now, by the server's clock, and drop who left long ago, and
-- what else somebody may have put there.
-- Runs when the memory is full: ZREMRANGEBYSCORE comes first.
-- KEYS  1 workers or supervisors of a pool (sorted set)
-- ARGV  1 id  2 ms after which a silent one is dropped  3 "list" to be told who is here | ""
-- Reply {now ms} | with "list": {now ms, id, last seen ms, id, last seen ms, ...}
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
local shown = string.format('%.0f', now)
local left = redis.pcall('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - tonumber(ARGV[2])))
if type(left) == 'table' and left.err then
  if not string.find(left.err, 'WRONGTYPE', 1, true) then
    return left
  end
  redis.call('UNLINK', KEYS[1])
end
redis.call('ZADD', KEYS[1], shown, ARGV[1])
if ARGV[3] ~= 'list' then
  return {shown}
end
local reply = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
table.insert(reply, 1, shown)
return reply
