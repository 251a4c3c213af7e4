-- Set an entry aside for good, with the reason; the oldest make room when there are too many. What an append wrote is
-- settled by the holder of the seat; what none wrote was never counted, belongs to nobody and may lie about its bytes.
-- An id that a server gave out again, after it lost its tail and its clock stepped back, is another batch's: left alone.
-- Runs when the memory is full: XACK comes first.
-- KEYS  1 ctl (hash)  2 experience (stream)  3 flow (hash)  4 dead (stream)  5 blob (string)  6 where the bytes of a
--       foreign entry go (string); by name: accepted (hash), blobs made room for
-- ARGV  1 seat epoch, "" for a foreign entry  2 group  3 entry id  4 bytes  5 steps  6 "1" to keep the blob
--       7 most entries  8 most bytes  9 reason  10.. field, value of the pointer
-- Reply {"OK", 1 set aside | 0 it was not there, is another one, or is not foreign} | {"FENCED"} | {"GONE"}
local seat = redis.call('HMGET', KEYS[1], 'command', 'seat_epoch')
if not seat[1] then
  return {'GONE'}
end
if ARGV[1] ~= '' and tonumber(seat[2] or '0') ~= tonumber(ARGV[1]) then
  return {'FENCED'}
end
local tag, accepted = string.gsub(KEYS[3], 'flow$', ''), (string.gsub(KEYS[3], 'flow$', 'accepted'))
local identity = string.match(KEYS[5], ':blob:(.*)$') or ''
local owner = redis.call('HGET', accepted, identity)
local own = owner == ARGV[3]
if own and ARGV[1] == '' then
  return {'OK', 0}
end
local entry = not own and redis.call('XRANGE', KEYS[2], ARGV[3], ARGV[3])[1]
if entry then
  for i = 1, #entry[2], 2 do
    local blob = entry[2][i] == 'blob' and entry[2][i + 1]
    if blob and string.find(blob, tag .. 'blob:', 1, true) == 1 and blob ~= KEYS[5] then
      return {'OK', 0}
    end
  end
end
local function add(field, number)
  return redis.call('HINCRBY', KEYS[3], field, string.format('%.0f', number + 0)) -- "-0" is no integer
end
redis.call('XACK', KEYS[2], ARGV[2], ARGV[3])
if redis.call('XDEL', KEYS[2], ARGV[3]) == 0 and not own then -- somebody may have trimmed the stream by hand
  return {'OK', 0}
end
if own then
  redis.call('HDEL', accepted, identity)
  add('entries', -1)
  add('bytes', -tonumber(ARGV[4]))
  add('steps', -tonumber(ARGV[5]))
  add('dead', 1)
  add('dead_steps', ARGV[5])
else
  add('foreign', 1)
end
local kept, blob, most, most_bytes = 0, KEYS[5], tonumber(ARGV[7]), tonumber(ARGV[8])
local size = redis.pcall('STRLEN', blob)
if type(size) ~= 'number' then
  size = 0 -- no string
end
if own or not owner then -- else the bytes are another entry's
  if ARGV[6] == '1' and size > 0 and size <= most_bytes then
    kept = size
    if own and redis.call('PTTL', blob) > 0 then -- from shared memory, just now
      redis.call('PERSIST', blob)
    end
    if not own then
      redis.call('RENAME', blob, KEYS[6])
      redis.call('PERSIST', KEYS[6])
      blob = KEYS[6]
    end
  elseif own or size > 0 then
    redis.call('UNLINK', blob)
  end
end
local bytes = add('dead_bytes', kept)
while redis.call('XLEN', KEYS[4]) >= most or bytes > most_bytes do
  local oldest = redis.call('XRANGE', KEYS[4], '-', '+', 'COUNT', '1')[1]
  if not oldest then
    break
  end
  local fact = {}
  for i = 1, #oldest[2], 2 do
    fact[oldest[2][i]] = oldest[2][i + 1]
  end
  redis.call('XDEL', KEYS[4], oldest[1])
  local freed, held = tonumber(fact['kept_bytes'] or '') or 0, fact['kept'] or '' -- or written by hand, with anything
  if string.find(held, tag .. 'blob:', 1, true) == 1 or string.find(held, tag .. 'dead:', 1, true) == 1 then
    redis.call('UNLINK', held)
  end
  freed = math.max(0, math.min(freed, bytes))
  bytes = add('dead_bytes', -freed)
end
local facts = {'reason', ARGV[9], 'entry', ARGV[3], 'kept_bytes', string.format('%.0f', kept), 'kept', kept > 0 and blob or ''}
if not own then
  facts[#facts + 1], facts[#facts + 2] = 'foreign', '1'
end
for i = 10, #ARGV do
  facts[#facts + 1] = ARGV[i]
end
redis.call('XADD', KEYS[4], '*', unpack(facts))
return {'OK', 1}
