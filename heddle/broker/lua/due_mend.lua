-- Have leases that are over be found over within a TTL, as the leader, where nothing says so: somebody has put their end
-- further off than any renewal does, or dropped it. Whoever holds such a shard and lives renews as ever.
-- Runs when the memory is full: HDEL of nothing comes first.
-- KEYS  1 ctl (hash)  2 due (sorted set)  3.. shard (hash), lease (hash with TTL) of each
-- ARGV  1 leader epoch  2 ttl ms  3.. shard index of each
-- Reply {"OK", index of a shard that this was so of, ...} | {"FENCED"} | {"GONE"}
local refusal = refused()
if refusal then
  return {refusal}
end
redis.call('HDEL', KEYS[1], '-')
local t = redis.call('TIME')
local latest = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000) + tonumber(ARGV[2])
local mended = {'OK'}
for i = 3, #KEYS, 2 do
  local shard = ARGV[(i + 3) / 2]
  local due = redis.call('ZSCORE', KEYS[2], shard)
  local strays = not due or (tonumber(due) or math.huge) > latest
  if strays and redis.call('HGET', KEYS[i], 'state') == 'leased' and redis.call('PTTL', KEYS[i + 1]) < 0 then
    redis.call('ZADD', KEYS[2], string.format('%.0f', latest), shard)
    mended[#mended + 1] = shard
  end
end
return mended
