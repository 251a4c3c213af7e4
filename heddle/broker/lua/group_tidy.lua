-- Delete a group's consumers that are idle and hold nothing; one script, so none of them can hold something meanwhile.
-- Where entries leave the stream once they are dealt with, it may be told to look at the oldest: those that the group has
-- passed over, since somebody's hand set it on, it then reads again, and with them some that are being dealt with.
-- KEYS  1 a stream
-- ARGV  1 group  2 least idle ms  3 entries to look at for some that were passed over, or none
-- Reply number of consumers deleted | with a third argument {that, 1 entries are read again | 0}
local deleted, passed = 0, 0
-- An error here means that the stream or the group is not there (yet).
local consumers = redis.pcall('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])
local function facts(flat)
  local fact = {}
  for i = 1, #flat, 2 do
    fact[flat[i]] = flat[i + 1]
  end
  return fact
end
for _, flat in ipairs(consumers.err and {} or consumers) do
  local fact = facts(flat)
  if tonumber(fact.pending) == 0 and tonumber(fact.idle) >= tonumber(ARGV[2]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], fact.name)
    deleted = deleted + 1
  end
end
if not ARGV[3] then
  return deleted
end
local oldest, held = {}, {}
for _, flat in ipairs(consumers.err and {} or redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local group = facts(flat)
  if group.name == ARGV[1] then
    oldest = redis.call('XRANGE', KEYS[1], '-', group['last-delivered-id'], 'COUNT', ARGV[3])
  end
end
local pending = #oldest > 0 and redis.call('XPENDING', KEYS[1], ARGV[1], oldest[1][1], oldest[#oldest][1], '1000') or {}
for _, one in ipairs(pending) do
  held[one[1]] = true
end
for _, entry in ipairs(oldest) do
  passed = held[entry[1]] and passed or 1
end
if passed == 1 then
  redis.call('XGROUP', 'SETID', KEYS[1], ARGV[1], '0')
end
return {deleted, passed}
