-- Take a shard from an owner that died: its lease key is gone, or the one who started the worker vouches for its death.
-- A death counts only if the shard was being stepped and its owner got no batch accepted; a crash of its process also
-- after batches, as a failure given back does, where it is known that this shard was stepped: it was the only one held, or
-- its owner said so before each turn, as owners do of a suspect: one that was held in a crash of which that was not known.
-- Too many of either: quarantined. Where environments run in children of their own (`in_children`) the end of a child is
-- told by their owner (release.lua), a crash is nobody's, and owners say that they step a shard only while no other one's
-- environments live in them. Deaths of such a shard in company, before a batch, are counted apart (`company`): its next
-- owner tries it alone.
-- Runs when the memory is full: ZREM comes first.
-- Totals for people: `reaped` counts leases that ran out, `vouched` deaths that a parent saw, `quarantined` shards.
-- KEYS  1 ctl (hash)  2 shard (hash)  3 lease (hash with TTL)  4 due (sorted set)  5 queued (hash)  6 flow (hash)
--       7 waiting (sorted set); by name: the shard's snapshot (string)
-- ARGV  1 shard index  2 leader epoch, "" when vouched  3 vouched dead worker, "" for whoever's lease is over
--       4 barren deaths that quarantine, "" for the experiment's own  5 what to say of the death
--       6 server ms at which the lease was found over, "" when vouched  7 ms for which that is worth something: a server
--       that was frozen meanwhile kept every owner from renewing
--       8 vouched, and its process crashed: it follows the failure before if fewer batches lie between; "" for none
--       9 "1": the crashed process held no other shard  10 what to say of the death of one with environments in children
-- Reply {"OK", state now, worker, epoch, error, "1" when it was being stepped, "1" with environments in children} | {"ALIVE"}
--     | {"NO"}: not leased, or not by that worker | {"FENCED"}: another coordinator leads | {"LATE"}: look again | {"GONE"}
local ctl = redis.call('HMGET', KEYS[1], 'command', 'leader_epoch', 'barren_deaths', 'env_failures', 'in_children')
if not ctl[1] then
  return {'GONE'}
end
if ARGV[2] ~= '' and tonumber(ARGV[2]) < whole(ctl[2]) then
  return {'FENCED'}
end
local t = redis.call('TIME')
local at = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
if ARGV[6] ~= '' and at - tonumber(ARGV[6]) > tonumber(ARGV[7]) then
  return {'LATE'}
end
local s = redis.call('HMGET', KEYS[2], 'state', 'worker', 'epoch', 'seq', 'claim_seq', 'stepping', 'parked', 'deaths', 'error', 'snapshot', 'failures',
  'suspect')
s[7], s[8] = whole(s[7]), whole(s[8]) -- by somebody's hand they may be anything
if s[1] ~= 'leased' then
  redis.call('ZREM', KEYS[4], ARGV[1])
  return {'NO'}
end
if ARGV[3] ~= '' and s[2] ~= ARGV[3] then
  return {'NO'}
end
if ARGV[3] == '' and redis.call('EXISTS', KEYS[3]) == 1 then
  return {'ALIVE'}
end
redis.call('ZREM', KEYS[4], ARGV[1])
redis.call('UNLINK', KEYS[3])
redis.call('ZREM', KEYS[7], ARGV[1])
if tonumber(s[7] or '0') > 0 then
  redis.call('HINCRBY', KEYS[6], 'parked', string.format('%.0f', -tonumber(s[7])))
end
local deaths, said = s[8], s[9] or ''
local apart = ctl[5] == '1'
local stepped = s[6] == '1' and not (apart and s[4] ~= s[5])
local state = ctl[1] == 'stop' and 'stopped' or 'queued'
if s[4] == s[5] and stepped then
  deaths, said = deaths + 1, apart and ARGV[10] or ARGV[5]
  local most = whole(ARGV[4] ~= '' and ARGV[4] or ctl[3])
  if deaths >= (most > 0 and most or 5) then
    state = 'quarantined'
  end
elseif s[4] == s[5] and apart then
  redis.call('HSET', KEYS[2], 'company', string.format('%.0f', whole(redis.call('HGET', KEYS[2], 'company')) + 1))
end
local within, most_failures = apart and '' or ARGV[8] or '', whole(ctl[4])
local suspect = s[12] and within ~= '' and whole(s[4]) - whole(s[12]) < tonumber(within)
local blamed = within ~= '' and (ARGV[9] == '1' or (stepped and (s[4] == s[5] or suspect)))
if within ~= '' and not blamed then
  redis.call('HSET', KEYS[2], 'suspect', s[4])
end
if blamed then
  local count, before = string.match(s[11] or '', '^(%d+):(%d+)$')
  local follows = count and whole(s[4]) - tonumber(before) < tonumber(within)
  local failures = follows and tonumber(count) + 1 or 1
  redis.call('HSET', KEYS[2], 'failures', string.format('%.0f:%s', failures, s[4]))
  said = ARGV[5]
  if most_failures > 0 and failures >= most_failures then
    state = 'quarantined'
  end
end
local now = string.format('%.0f', at)
redis.call('HSET', KEYS[2], 'state', state, 'stepping', '0', 'parked', '0', 'since', now, 'error', said,
  'deaths', string.format('%.0f', deaths))
if s[10] and state ~= 'queued' then
  redis.call('UNLINK', s[10])
  redis.call('HDEL', KEYS[2], 'snapshot')
end
if state == 'queued' then
  redis.call('HSET', KEYS[5], ARGV[1], '- ' .. now)
end
redis.call('HINCRBY', KEYS[6], ARGV[3] == '' and 'reaped' or 'vouched', 1)
if state == 'quarantined' then
  redis.call('HINCRBY', KEYS[6], 'quarantined', 1)
end
return {'OK', state, s[2], s[3], said, (blamed or stepped) and '1' or '0', apart and '1' or '0'}
