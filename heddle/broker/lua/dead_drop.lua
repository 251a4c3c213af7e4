-- Throw away what was set aside, with its bytes.
-- KEYS  1 dead (stream)  2 flow (hash); by name: the strings that hold the bytes
-- ARGV  1.. ids in the dead stream
-- Reply how many were there
local dropped, tag = 0, (string.gsub(KEYS[2], 'flow$', ''))
for _, id in ipairs(ARGV) do
  local entry = redis.call('XRANGE', KEYS[1], id, id)[1]
  if entry then
    local fact = {}
    for i = 1, #entry[2], 2 do
      fact[entry[2][i]] = entry[2][i + 1]
    end
    redis.call('XDEL', KEYS[1], id)
    local held = fact['kept'] or ''
    if string.find(held, tag .. 'blob:', 1, true) == 1 or string.find(held, tag .. 'dead:', 1, true) == 1 then
      redis.call('UNLINK', held)
      redis.call('HINCRBY', KEYS[2], 'dead_bytes', string.format('%.0f', 0 - (tonumber(fact['kept_bytes'] or '') or 0)))
    end
    dropped = dropped + 1
  end
end
return dropped
