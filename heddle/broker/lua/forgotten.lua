-- Count what a worker got accepted, and what the broker forgot, of a shard that is not the worker's any more: the rest
-- of a claim that is known, or all of one that is not; once a claim. While a broker that went back takes the claim for
-- the owner's nothing is: what it forgot may come again, by late copies, until the shard is released.
-- Runs when the memory is full: HDEL comes first.
-- KEYS  1 ctl (hash)  2 shard (hash)  3 flow (hash)
-- ARGV  1 epoch  2 nonce  3 seq before its first batch  4 seq of its last accepted one
--       5 seq up to which the caller believes them known  6 steps of those beyond
-- Reply {"OK"} counted, now or before, or nothing to count | {"KNOWN", seq}: nothing written, the caller is mistaken
--     | {"HELD"}: it is to be released, which counts | {"GONE"}
if redis.call('EXISTS', KEYS[1]) == 0 then
  return {'GONE'}
end
local s = redis.call('HMGET', KEYS[2], 'epoch', 'nonce', 'claim_seq', 'seq', 'previous', 'reported', 'state')
local id = ARGV[1] .. ':' .. ARGV[2]
local reported = {id}
for known in string.gmatch(s[6] or '', '%S+') do
  if known == id then
    return {'OK'}
  end
  reported[#reported + 1] = known
end
if not s[1] then
  return {'OK'} -- nobody knows the shard
end
local owners = table.concat({s[1], s[2] or '', s[3] or '0', s[4] or '0'}, ':') .. ' ' .. (s[5] or '')
local count, oldest, known = 0, 0, nil
for epoch, nonce, _, to in string.gmatch(owners, '(%d+):([^: ]*):(%d+):(%d+)') do
  count, oldest = count + 1, tonumber(epoch)
  if epoch == ARGV[1] and nonce == ARGV[2] then
    known = tonumber(to)
  end
end
if not known and count > 8 and tonumber(ARGV[1]) < oldest then
  return {'OK'} -- so old an owner may have been known
end
known = known or tonumber(ARGV[3])
local lost = tonumber(ARGV[4]) - known
if lost <= 0 then
  return {'OK'}
end
if known ~= tonumber(ARGV[5]) then
  return {'KNOWN', string.format('%.0f', known)}
end
if s[7] == 'leased' and s[1] == ARGV[1] and s[2] == ARGV[2] then
  return {'HELD'}
end
redis.call('HDEL', KEYS[2], '-')
redis.call('HSET', KEYS[2], 'reported', table.concat(reported, ' ', 1, math.min(#reported, 8)))
redis.call('HINCRBY', KEYS[3], 'forgotten', string.format('%.0f', lost))
redis.call('HINCRBY', KEYS[3], 'forgotten_steps', ARGV[6])
return {'OK'}
