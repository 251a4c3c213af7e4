-- Have leases be found over within a TTL unless they are renewed, as the leader, where nothing says so: somebody has put
-- the end of one that is over further off than any renewal does, or dropped it; or has made one that has no end, which is
-- there for ever once its owner is dead. Whoever holds such a shard and lives renews as ever, and gives it an end again.
-- Runs when the memory is full: HDEL of nothing comes first.
-- KEYS  1 ctl (hash)  2 due (sorted set)  3.. shard (hash), lease (hash with TTL) of each
-- ARGV  1 leader epoch  2 ttl ms  3.. shard index of each
-- Reply {"OK", index of a shard that this was so of, "due" | "lease", ...} | {"FENCED"} | {"GONE"}
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
  local due, lasts = redis.call('ZSCORE', KEYS[2], shard), redis.call('PTTL', KEYS[i + 1])
  local strays = not due or (tonumber(due) or math.huge) > latest
  if (lasts == -1 or (strays and lasts < 0)) and redis.call('HGET', KEYS[i], 'state') == 'leased' then
    if lasts == -1 then -- no script leaves one like that; in one that was renewed meanwhile there is an end
      redis.call('PEXPIRE', KEYS[i + 1], ARGV[2])
    end
    redis.call('ZADD', KEYS[2], string.format('%.0f', latest), shard)
    mended[#mended + 1], mended[#mended + 2] = shard, lasts == -1 and 'lease' or 'due'
  end
end
return mended
