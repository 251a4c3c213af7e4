-- Give every pending entry of a group to one consumer; their delivery counts stay. What was deleted leaves the group.
-- Runs when the memory is full: XAUTOCLAIM is allowed then.
-- KEYS  1 ctl (hash)  2 experience (stream)
-- ARGV  1 group  2 consumer
-- Reply {"OK", {entry id, {field, value, ...}}, ...} oldest first | {"GONE"}; error NOGROUP
if redis.call('EXISTS', KEYS[1]) == 0 then
  return {'GONE'}
end
local reply, cursor = {'OK'}, '0-0'
repeat
  local found = redis.call('XAUTOCLAIM', KEYS[2], ARGV[1], ARGV[2], '0', cursor, 'COUNT', '100', 'JUSTID')
  cursor = found[1]
  for _, id in ipairs(found[2]) do
    local entry = redis.call('XRANGE', KEYS[2], id, id)[1]
    if entry then
      reply[#reply + 1] = entry
    else
      redis.call('XACK', KEYS[2], ARGV[1], id)
    end
  end
until cursor == '0-0'
return reply
