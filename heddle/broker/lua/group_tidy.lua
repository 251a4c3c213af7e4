-- Delete a group's consumers that are idle and hold nothing; one script, so none of them can hold something meanwhile.
-- KEYS  1 a stream
-- ARGV  1 group  2 least idle ms
-- Reply number of consumers deleted
local deleted = 0
-- An error here means that the stream or the group is not there (yet).
local consumers = redis.pcall('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])
if consumers.err then
  return deleted
end
for _, flat in ipairs(consumers) do
  local fact = {}
  for i = 1, #flat, 2 do
    fact[flat[i]] = flat[i + 1]
  end
  if tonumber(fact.pending) == 0 and tonumber(fact.idle) >= tonumber(ARGV[2]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], fact.name)
    deleted = deleted + 1
  end
end
return deleted
