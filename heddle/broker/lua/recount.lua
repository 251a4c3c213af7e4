-- Count an experiment's experience anew, as the leader: accepted entries that somebody took out of the stream by hand, and
-- that no trainer has in hand, are dropped, or the room they took would never come back.
-- Runs when the memory is full: HDEL comes first.
-- KEYS  1 ctl (hash)  2 experience (stream)  3 flow (hash); by name: accepted (hash), the blobs (strings)
-- ARGV  1 leader epoch  2 the trainer's group
-- Reply {"OK", entries that were dropped} | {"FENCED"} | {"GONE"}
local refusal = refused()
if refusal then
  return {refusal}
end
local accepted, blobs = (string.gsub(KEYS[3], 'flow$', 'accepted')), string.gsub(KEYS[3], 'flow$', 'blob:')
local known, gone = redis.call('HGETALL', accepted), {}
if #known / 2 <= redis.call('XLEN', KEYS[2]) then
  return {'OK', 0} -- a trainer takes foreign entries out; until then they may hide that some are missing
end
local there = {entries = 0, bytes = 0, steps = 0}
for i = 1, #known, 2 do
  local entry = redis.call('XRANGE', KEYS[2], known[i + 1], known[i + 1])[1]
  if not entry then
    gone[#gone + 1] = known[i]
    local pending = redis.pcall('XPENDING', KEYS[2], ARGV[2], known[i + 1], known[i + 1], '1')
    if pending[1] then -- an error, which has none, where the group is gone as well
      return {'OK', 0} -- the trainer settles what it has in hand; until then nobody can tell what that takes
    end
  else
    there.entries = there.entries + 1
    for k = 1, #entry[2], 2 do
      if entry[2][k] == 'bytes' or entry[2][k] == 'steps' then
        there[entry[2][k]] = there[entry[2][k]] + whole(entry[2][k + 1])
      end
    end
  end
end
if #gone == 0 then
  return {'OK', 0}
end
for _, identity in ipairs(gone) do
  redis.call('HDEL', accepted, identity)
  redis.call('UNLINK', blobs .. identity)
end
local steps = whole(redis.call('HGET', KEYS[3], 'steps')) - there.steps
for field, number in pairs(there) do
  redis.call('HSET', KEYS[3], field, string.format('%.0f', number))
end
redis.call('HINCRBY', KEYS[3], 'dropped', string.format('%.0f', #gone))
redis.call('HINCRBY', KEYS[3], 'dropped_steps', string.format('%.0f', math.max(0, steps)))
return {'OK', #gone}
