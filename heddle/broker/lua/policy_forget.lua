-- Delete an old policy version, as the holder of the seat; never the latest nor the one pinned for evaluation.
-- Runs when the memory is full: UNLINK comes first.
-- KEYS  1 ctl (hash)  2 policy (hash)  3.. chunks (strings)
-- ARGV  1 seat epoch  2 version
-- Reply "OK" | "KEPT" | "FENCED" | "GONE"
if redis.call('EXISTS', KEYS[1]) == 0 then
  return 'GONE'
end
local ctl = redis.call('HMGET', KEYS[1], 'seat_epoch', 'policy', 'eval_policy', 'versions')
if tonumber(ctl[1] or '0') ~= tonumber(ARGV[1]) then
  return 'FENCED'
end
if ARGV[2] == ctl[2] or ARGV[2] == ctl[3] then
  return 'KEPT'
end
for i = 2, #KEYS do
  redis.call('UNLINK', KEYS[i])
end
local kept = {}
for entry in string.gmatch(ctl[4] or '', '%S+') do
  if string.match(entry, '^(%d+):') ~= ARGV[2] then
    kept[#kept + 1] = entry
  end
end
redis.call('HSET', KEYS[1], 'versions', table.concat(kept, ' '))
return 'OK'
