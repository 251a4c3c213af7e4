-- The oldest ticket that nobody has read. Writes nothing.
-- KEYS  1 tickets (stream)
-- ARGV  1 group
-- Reply {now ms} | {now ms, entry id, {field, value, ...}, entries there, read or not, 1 when it or one of the next is urgent}
local NEXT = 16 -- so far behind one that nobody takes may an urgent one stand
local t = redis.call('TIME')
local now = string.format('%.0f', tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000))
if redis.call('EXISTS', KEYS[1]) == 0 then
  return {now}
end
local last = '0-0'
for _, flat in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local fact = {}
  for i = 1, #flat, 2 do
    fact[flat[i]] = flat[i + 1]
  end
  if fact['name'] == ARGV[1] then
    last = fact['last-delivered-id']
  end
end
if last == '18446744073709551615-18446744073709551615' then -- by somebody's hand: nothing lies beyond
  return {now}
end
local found = redis.call('XRANGE', KEYS[1], '(' .. last, '+', 'COUNT', NEXT)
if #found == 0 then
  return {now}
end
local urgent = 0
for _, entry in ipairs(found) do
  for i = 1, #entry[2], 2 do
    if entry[2][i] == 'urgent' and entry[2][i + 1] == '1' then
      urgent = 1
    end
  end
end
return {now, found[1][1], found[1][2], redis.call('XLEN', KEYS[1]), urgent}
