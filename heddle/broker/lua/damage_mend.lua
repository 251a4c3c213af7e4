-- Remove keys that are of another kind than ours, as the leader, and make anew what follows from the shards' own hashes:
-- which are leased, and which wait for a worker. Runs when the memory is full: UNLINK and HDEL come first.
-- KEYS  1 ctl (hash)  2 due (sorted set)  3 queued (hash)  4.. those that were found to be of another kind; by name: the
--       shards (hashes)
-- ARGV  1 leader epoch  2 ms within which an owner renews  3.. what each of them should be (hash | zset | stream)
-- Reply {"OK", keys removed} | {"FENCED"} | {"GONE"}
local refusal = refused()
if refusal then
  return {refusal}
end
local asks = {hash = {'HGET', '-'}, zset = {'ZSCORE', '-'}, stream = {'XLEN'}}
local removed = 0
for i = 4, #KEYS do
  local ask = asks[ARGV[i - 1]] or asks.hash
  local found = redis.pcall(ask[1], KEYS[i], unpack(ask, 2))
  if type(found) == 'table' and found.err then -- it may have been mended meanwhile
    removed = removed + redis.call('UNLINK', KEYS[i])
  end
end
redis.call('HDEL', KEYS[1], 'damaged')
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
for shard = 0, whole(redis.call('HGET', KEYS[1], 'shards')) - 1 do
  local state = redis.call('HGET', (string.gsub(KEYS[2], 'due$', 'shard:' .. shard)), 'state')
  if state == 'leased' then
    redis.call('ZADD', KEYS[2], 'NX', string.format('%.0f', now + tonumber(ARGV[2])), shard)
  elseif state == 'queued' then
    redis.call('HSETNX', KEYS[3], shard, string.format('- %.0f', now))
  end
end
return {'OK', removed}
