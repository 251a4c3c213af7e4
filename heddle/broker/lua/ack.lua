-- Settle entries, as the holder of the seat: out of the group, out of the stream, blob deleted, counted once. One that
-- no append wrote was never counted, and its bytes may be another's: it only leaves. An id that a server gave out again,
-- after it lost its tail and its clock stepped back, is another batch's: left alone.
-- Runs when the memory is full: XACK comes first.
-- KEYS  1 ctl (hash)  2 experience (stream)  3 flow (hash)  4.. blob (string) of each entry; by name: accepted (hash)
-- ARGV  1 seat epoch  2 group  3.. entry id, outcome, bytes, steps of each
-- Reply {"OK", entries that were there, number from 1 of each whose bytes an entry still refers to ...} | {"FENCED"} | {"GONE"}
local seat = redis.call('HMGET', KEYS[1], 'command', 'seat_epoch')
if not seat[1] then
  return {'GONE'}
end
if tonumber(seat[2] or '0') ~= tonumber(ARGV[1]) then
  return {'FENCED'}
end
local sums, acked, accepted, kept = {}, 0, (string.gsub(KEYS[3], 'flow$', 'accepted')), {}
local blobs = string.gsub(KEYS[3], 'flow$', 'blob:')
local function add(field, number)
  sums[field] = (sums[field] or 0) + number
end
local function is_anothers(id, blob)
  local entry = redis.call('XRANGE', KEYS[2], id, id)[1]
  for i = 1, entry and #entry[2] or 0, 2 do
    if entry[2][i] == 'blob' and string.find(entry[2][i + 1], blobs, 1, true) == 1 then
      return entry[2][i + 1] ~= blob
    end
  end
  return false
end
for i = 4, #KEYS do
  local at = 3 + (i - 4) * 4
  local identity = string.match(KEYS[i], ':blob:(.*)$') or ''
  local own = redis.call('HGET', accepted, identity) == ARGV[at]
  if not own and redis.call('HGET', accepted, identity) then
    kept[#kept + 1] = i - 3
  end
  if own or not is_anothers(ARGV[at], KEYS[i]) then
    redis.call('XACK', KEYS[2], ARGV[2], ARGV[at])
    if redis.call('XDEL', KEYS[2], ARGV[at]) == 1 or own then -- somebody may have trimmed the stream by hand
      acked = acked + 1
      if own then
        redis.call('HDEL', accepted, identity)
        redis.call('UNLINK', KEYS[i])
        local steps = tonumber(ARGV[at + 3])
        add('entries', -1)
        add('bytes', -tonumber(ARGV[at + 2]))
        add('steps', -steps)
        add(ARGV[at + 1], 1)
        add(ARGV[at + 1] .. '_steps', steps)
      else
        add('foreign', 1)
      end
    end
  end
end
for field, number in pairs(sums) do
  redis.call('HINCRBY', KEYS[3], field, string.format('%.0f', number))
end
return {'OK', acked, unpack(kept)}
