-- Claim a queued shard: a new epoch, higher than every one before. The same worker with the same nonce gets the same
-- answer again. Refused when the memory is full, which is right: no new work then.
-- KEYS  1 ctl (hash)  2 shard (hash)  3 lease (hash with TTL)  4 due (sorted set)  5 queued (hash)
-- ARGV  1 shard index  2 worker  3 nonce  4 ttl ms  5 batches after which a suspect (see reap.lua) is none any more
-- Reply {"OK", epoch, seq, given, command, policy, min_policy, eval_policy, snapshot key or "", kind, attempts, sync,
--     deaths, why no snapshot, token of the shared memory that every reader can map, "" for none, "1" for a suspect,
--     owners in a row that died in the company of other shards (see reap.lua)}
--     | {"HELD"}: not queued | {"GONE"}: the experiment was removed or stopped, or has no such shard
local ctl = redis.call('HMGET', KEYS[1], 'command', 'policy', 'min_policy', 'eval_policy', 'sync', 'plane', 'far')
local s = redis.call('HMGET', KEYS[2], 'state', 'worker', 'epoch', 'nonce', 'seq', 'given', 'snapshot', 'kind', 'attempts',
  'claim_seq', 'previous', 'deaths', 'no_snapshot', 'suspect', 'company')
if not ctl[1] or ctl[1] == 'stop' or not s[1] then
  return {'GONE'}
end
local again = s[1] == 'leased' and s[2] == ARGV[2] and s[4] == ARGV[3]
if s[1] ~= 'queued' and not again then
  return {'HELD'}
end
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
for _, i in ipairs({3, 9, 10}) do -- by somebody's hand they may be anything
  s[i] = string.format('%.0f', whole(s[i]))
end
local epoch, attempts = s[3], s[9]
if not again then
  epoch = string.format('%.0f', math.max(tonumber(s[3]) + 1, now))
  attempts = string.format('%.0f', tonumber(s[9]) + 1)
  local previous = {table.concat({s[3], s[4], s[10], s[5]}, ':')} -- who may still send, and what was accepted of theirs
  for owner in string.gmatch(s[11] or '', '%S+') do
    previous[#previous + 1] = owner
  end
  redis.call('HSET', KEYS[2], 'state', 'leased', 'worker', ARGV[2], 'epoch', epoch, 'nonce', ARGV[3],
    'attempts', attempts, 'claim_seq', s[5], 'stepping', '0', 'mark', '0', 'since', string.format('%.0f', now),
    'previous', table.concat(previous, ' ', 1, math.min(#previous, 8)))
  redis.call('HDEL', KEYS[5], ARGV[1])
end
redis.call('HSET', KEYS[3], 'worker', ARGV[2], 'epoch', epoch)
redis.call('PEXPIRE', KEYS[3], ARGV[4])
redis.call('ZADD', KEYS[4], string.format('%.0f', now + tonumber(ARGV[4])), ARGV[1])
return {'OK', epoch, s[5], s[6], ctl[1], ctl[2] or '0', ctl[3] or '0', ctl[4] or '0', s[7] or '', s[8], attempts, ctl[5] or '0',
  s[12] or '0', s[13] or '', whole(ctl[7]) > now and '' or ctl[6] or '',
  s[14] and tonumber(s[5]) - whole(s[14]) < tonumber(ARGV[5]) and '1' or '', s[15] or '0'}
