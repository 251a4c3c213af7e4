-- Give a shard back, as its owner: queued again, or stopped, or quarantined after too many barren owners or failures.
-- Runs when the memory is full: UNLINK comes first.
-- KEYS  1 ctl (hash)  2 shard (hash)  3 lease (hash with TTL)  4 due (sorted set)  5 queued (hash)  6 flow (hash)
--       7 waiting (sorted set); by name: the shard's snapshot (string)
-- ARGV  1 shard index  2 worker  3 epoch  4 nonce  5 error, "" for none  6 "1" when it counts as a barren death
--       7 batches that the broker forgot  8 their steps  9 the last seq that it should know, "" for whatever it does
--       10 the environment that failed and gave nothing, though others did; "" for none. Owners in a row that failed
--       with the same one count as barren ones do
--       11 with an error: it follows the failure before if fewer batches lie between them; "": however many do
-- Reply {"OK", state now} | {"GAP", seq}: it knows that; nothing changed | {"FENCED"} | {"GONE"}
local ctl = redis.call('HMGET', KEYS[1], 'command', 'barren_deaths', 'env_failures')
if not ctl[1] then
  return {'GONE'}
end
local s = redis.call('HMGET', KEYS[2], 'state', 'worker', 'epoch', 'nonce', 'parked', 'deaths', 'seq', 'reported', 'snapshot', 'stuck', 'failures')
if s[1] ~= 'leased' or s[2] ~= ARGV[2] or s[3] ~= ARGV[3] or s[4] ~= ARGV[4] then
  return {'FENCED'}
end
local known = tonumber(s[7] or '0')
s[5], s[6] = whole(s[5]), whole(s[6]) -- by somebody's hand they may be anything
if ARGV[9] ~= '' and (known < tonumber(ARGV[9]) or (tonumber(ARGV[7]) > 0 and known > tonumber(ARGV[9]))) then
  return {'GAP', s[7] or '0'} -- above it: one of those it forgot came again by a late copy of its append
end
redis.call('UNLINK', KEYS[3])
redis.call('ZREM', KEYS[4], ARGV[1])
redis.call('ZREM', KEYS[7], ARGV[1])
if tonumber(s[5] or '0') > 0 then
  redis.call('HINCRBY', KEYS[6], 'parked', string.format('%.0f', -tonumber(s[5])))
end
if tonumber(ARGV[7]) > 0 then
  redis.call('HINCRBY', KEYS[6], 'forgotten', ARGV[7])
  redis.call('HINCRBY', KEYS[6], 'forgotten_steps', ARGV[8])
  local reported = {ARGV[3] .. ':' .. ARGV[4]} -- read by forgotten.lua
  for known in string.gmatch(s[8] or '', '%S+') do
    reported[#reported + 1] = known
  end
  redis.call('HSET', KEYS[2], 'reported', table.concat(reported, ' ', 1, math.min(#reported, 8)))
end
local deaths = s[6] + tonumber(ARGV[6])
local state, most, stuck = 'queued', whole(ctl[2]), 0
most = most > 0 and most or 5
if ARGV[10] ~= '' then
  local env, count = string.match(s[10] or '', '^(%d+):(%d+)$')
  stuck = env == ARGV[10] and tonumber(count) + 1 or 1
end
local failures, most_failures, within = 0, whole(ctl[3]), ARGV[11] or ''
if ARGV[5] ~= '' then
  local count, at = string.match(s[11] or '', '^(%d+):(%d+)$')
  failures = count and (within == '' or known - tonumber(at) < tonumber(within)) and tonumber(count) + 1 or 1
end
if (ARGV[6] == '1' and deaths >= most) or stuck >= most or (most_failures > 0 and failures >= most_failures) then
  state = 'quarantined'
elseif ctl[1] == 'stop' then
  state = 'stopped'
end
local t = redis.call('TIME')
local now = string.format('%.0f', tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000))
redis.call('HSET', KEYS[2], 'state', state, 'stepping', '0', 'parked', '0', 'since', now,
  'deaths', string.format('%.0f', deaths))
if ARGV[5] ~= '' then
  redis.call('HSET', KEYS[2], 'error', ARGV[5], 'stuck', stuck > 0 and string.format('%s:%.0f', ARGV[10], stuck) or '',
    'failures', string.format('%.0f:%.0f', failures, known))
end
if s[9] and (state ~= 'queued' or ARGV[5] ~= '') then -- nobody plays on, or not from what ended in an error
  redis.call('UNLINK', s[9])
  redis.call('HDEL', KEYS[2], 'snapshot')
end
if state == 'quarantined' then
  redis.call('HINCRBY', KEYS[6], 'quarantined', 1)
end
if state == 'queued' then
  redis.call('HSET', KEYS[5], ARGV[1], '- ' .. now)
end
return {'OK', state}
