-- Accept a shard's next batch: fenced, in order, capped, once; renews its lease. Its blob was SET just before.
-- Runs when the memory is full, so that what is stored can move on: PEXPIRE, or HDEL of nothing, comes first.
-- KEYS  1 ctl  2 shard (hashes)  3 lease (hash with TTL)  4 due (sorted set)  5 experience (stream)  6 flow (hash)
--       7 waiting (sorted set)  8 blob  9 snapshot (strings; 9 only with one); by name: the shards ahead in
--       `waiting`, accepted (hash)
-- ARGV  1 shard index  2 worker  3 epoch  4 nonce  5 seq  6 lease ttl ms  7 stepping next (0 | 1), "" to leave it  8 blob ttl ms
--       9 kind  10 version min  11 version max  12 segments  13 steps  14 bytes  15 crc32  16 given
--       17 ms that its worker waited before  18 why it has no snapshot, "" when there is nothing to say
--       19 token of the shared memory in which its bytes lie, "" or none where they are the blob
--       20, 21 ms that playing it took, and that it waited to be sent; none from a worker that does not tell
-- What comes after the outcome was told is turned away as GIVEN, with command stop: nobody would settle it.
-- Reply {status, command, policy, eval_policy, seq accepted last, room entries, room bytes, accepted before (0 | 1),
--     token of the shared memory that every reader can map, "" for none}
local ctl = redis.call('HMGET', KEYS[1], 'command', 'policy', 'eval_policy', 'sync', 'max_entries', 'max_bytes', 'outcome',
  'plane', 'far')
if not ctl[1] then
  return {'GONE', 'stop', '0', '0', '0', '0', '0', 0, ''}
end
local s = redis.call('HMGET', KEYS[2], 'state', 'worker', 'epoch', 'nonce', 'claim_seq', 'seq', 'given', 'parked', 'snapshot',
  'steps')
s[5], s[8], s[10] = whole(s[5]), whole(s[8]), whole(s[10]) -- by somebody's hand they may be anything
local f = redis.call('HMGET', KEYS[6], 'entries', 'bytes')
local seq, last, given, size = tonumber(ARGV[5]), tonumber(s[6] or '0'), tonumber(ARGV[16]), tonumber(ARGV[14])
local mapped = (ARGV[19] or '') ~= ''
local entries, room = tonumber(f[1] or '0'), tonumber(ctl[5] or '1024') - tonumber(f[1] or '0')
local room_bytes = tonumber(ctl[6] or '536870912') - tonumber(f[2] or '0')
local function add(key, field, number)
  redis.call('HINCRBY', key, field, string.format('%.0f', number))
end
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
local function reply(status, before)
  local plane = whole(ctl[9]) > now and '' or ctl[8] or '' -- a reader far away needs the bytes here
  return {status, ctl[1], ctl[2] or '0', ctl[3] or '0', string.format('%.0f', last), string.format('%.0f', room),
    string.format('%.0f', room_bytes), before or 0, plane}
end
local function discard() -- counts a batch once, however often it is sent again
  local id = table.concat({ARGV[3], ARGV[4], ARGV[5], ARGV[16]}, ':')
  local kept = {id}
  for known in string.gmatch(redis.call('HGET', KEYS[2], 'discards') or '', '%S+') do
    if known == id then
      return
    end
    kept[#kept + 1] = known
  end
  redis.call('HDEL', KEYS[2], '-')
  redis.call('HSET', KEYS[2], 'discards', table.concat(kept, ' ', 1, math.min(#kept, 8)))
  add(KEYS[6], 'discarded', 1)
  add(KEYS[6], 'discarded_steps', ARGV[13])
end
if s[1] ~= 'leased' or s[2] ~= ARGV[2] or s[3] ~= ARGV[3] or s[4] ~= ARGV[4] then
  local owners = table.concat({s[3] or '0', s[4] or '', string.format('%.0f', s[5]), s[6] or '0'}, ':')
  local known, oldest = 0, 0
  owners = owners .. ' ' .. (redis.call('HGET', KEYS[2], 'previous') or '')
  for epoch, nonce, from, to in string.gmatch(owners, '(%d+):([^: ]*):(%d+):(%d+)') do
    known, oldest = known + 1, tonumber(epoch)
    if epoch == ARGV[3] and nonce == ARGV[4] and seq > tonumber(from) and seq <= tonumber(to) then
      return reply('FENCED', 1)
    end
  end
  if s[1] and (known <= 8 or tonumber(ARGV[3]) >= oldest) then -- of an older owner nobody knows what was accepted
    discard()
  end
  return reply('FENCED')
end
local function unpark(parked)
  if parked ~= tonumber(s[8]) then
    redis.call('HSET', KEYS[2], 'parked', string.format('%.0f', parked))
    add(KEYS[6], 'parked', parked - tonumber(s[8]))
  end
end
local gave = s[7] + 0 -- where that is no number all ends here, before anything is written
if redis.call('PEXPIRE', KEYS[3], ARGV[6]) == 0 then
  redis.call('HSET', KEYS[3], 'worker', ARGV[2], 'epoch', ARGV[3])
  redis.call('PEXPIRE', KEYS[3], ARGV[6])
end
redis.call('ZADD', KEYS[4], string.format('%.0f', now + tonumber(ARGV[6])), ARGV[1])
if seq > tonumber(s[5]) and seq <= last then
  return reply('DUP')
end
if seq ~= last + 1 then
  discard()
  return reply('GAP')
end
local is_over = (ctl[7] or '') ~= ''
if is_over or (given > 0 and tonumber(s[7]) >= given and (ARGV[9] == 'eval' or ctl[4] == '1')) then
  discard()
  unpark(0)
  redis.call('UNLINK', unpack(KEYS, 8)) -- nobody refers to it, and the next batch has the same seq
  return reply('GIVEN')
end
-- Room is owed to those who wait longer and were seen within 2 s; others lose their place.
local full, left, left_bytes = entries > 0 and (room < 1 or room_bytes < size), room - 1, room_bytes - size
local place = redis.call('ZRANK', KEYS[7], ARGV[1]) or 64
for _, ahead in ipairs((full or place == 0) and {} or redis.call('ZRANGE', KEYS[7], 0, place - 1)) do
  local refused = redis.call('HGET', string.gsub(KEYS[2], '%d+$', ahead), 'refused') or '0:0'
  local at, wants = string.match(refused, '^(%d+):(%d+)$')
  if now - tonumber(at) > 2000 then
    redis.call('ZREM', KEYS[7], ahead)
  else
    left, left_bytes = left - 1, left_bytes - tonumber(wants)
    full = full or left < 0 or left_bytes < 0
  end
end
if full then
  redis.call('ZADD', KEYS[7], 'NX', string.format('%.0f', tonumber(t[1]) * 1000000 + tonumber(t[2])), ARGV[1])
  redis.call('HSET', KEYS[2], 'refused', string.format('%.0f:%.0f', now, size))
  unpark((mapped and 1 or redis.call('PEXPIRE', KEYS[8], ARGV[8])) * size)
  if KEYS[9] then
    redis.call('PEXPIRE', KEYS[9], ARGV[8])
  end
  return reply('FULL')
end
local stored = mapped and size or redis.pcall('STRLEN', KEYS[8]) -- an error when somebody put something else than bytes there
if stored ~= size or (KEYS[9] and redis.call('EXISTS', KEYS[9]) == 0) then
  if stored ~= size then
    redis.call('UNLINK', KEYS[8])
  end
  return reply('NOBLOB')
end
redis.call('PERSIST', KEYS[8])
unpark(0)
if KEYS[9] then
  redis.call('PERSIST', KEYS[9])
  if s[9] and s[9] ~= KEYS[9] then
    redis.call('UNLINK', s[9])
  end
  redis.call('HSET', KEYS[2], 'snapshot', KEYS[9], 'no_snapshot', '')
elseif ARGV[18] ~= '' then
  redis.call('HSET', KEYS[2], 'no_snapshot', ARGV[18])
end
local entry = redis.call('XADD', KEYS[5], '*', 'shard', ARGV[1], 'epoch', ARGV[3], 'nonce', ARGV[4], 'seq', ARGV[5], 'kind', ARGV[9],
  'version_min', ARGV[10], 'version_max', ARGV[11], 'segments', ARGV[12], 'steps', ARGV[13], 'bytes', ARGV[14],
  'crc32', ARGV[15], 'given', ARGV[16], 'waited_ms', ARGV[17], 'played_ms', ARGV[20] or '0', 'held_ms', ARGV[21] or '0',
  'blob', KEYS[8], 'location', mapped and 'shm' or 'redis', unpack(mapped and {'place', ARGV[19]} or {}))
local identity = table.concat({ARGV[1], ARGV[3], ARGV[4], ARGV[5]}, ':')
redis.call('HSET', (string.gsub(KEYS[6], 'flow$', 'accepted')), identity, entry) -- no entry counts that is not in here
redis.call('HSET', KEYS[2], 'seq', ARGV[5], 'deaths', '0', 'company', '0',
  'accepted', string.format('%.0f', now), 'steps', string.format('%.0f', s[10] + tonumber(ARGV[13])), 'given',
  string.format('%.0f', math.max(given, gave)), unpack(ARGV[7] ~= '' and {'stepping', ARGV[7]} or {}))
redis.call('ZREM', KEYS[7], ARGV[1])
add(KEYS[6], 'entries', 1)
add(KEYS[6], 'bytes', size)
add(KEYS[6], 'steps', ARGV[13])
add(KEYS[6], 'appended', 1)
add(KEYS[6], 'appended_steps', ARGV[13])
add(KEYS[6], 'appended_bytes', size)
if mapped then
  add(KEYS[6], 'mapped', 1)
end
last, room, room_bytes = seq, room - 1, room_bytes - size
return reply('OK')
