-- Take back that a policy version is there, since somebody found that it is not, or not whole: its trainer compares
-- ctl with what it has published, and publishes it again; an evaluation whose pinned version it was is begun anew.
-- Whoever found it missing may say so late: what is there again by then stays, else an honest version would fall.
-- Runs when the memory is full: HDEL of nothing comes first.
-- KEYS  1 ctl (hash)  2 policy (hash)  3.. chunks that it named (strings)
-- ARGV  1 version  2 sha256 that it had, "" for none  3 "torn" when what is there is not what was published
-- Reply 1 when it was taken back, 0 when ctl tells of it no more, or it is there
local ctl = redis.call('HMGET', KEYS[1], 'policy', 'eval_policy', 'versions')
if ARGV[1] ~= ctl[1] and ARGV[1] ~= ctl[2] then
  return 0
end
local sha256 = redis.pcall('HGET', KEYS[2], 'sha256') -- an error where somebody has put something else there
local is_there = type(sha256) == 'string'
if is_there and sha256 == ARGV[2] then
  for i = 3, #KEYS do
    is_there = is_there and redis.call('EXISTS', KEYS[i]) == 1
  end
end
if is_there and ARGV[3] ~= 'torn' then
  return 0
end
local kept, newest = {}, '0'
for entry in string.gmatch(ctl[3] or '', '%S+') do
  local version = string.match(entry, '^(%d+):%d+:%x+$')
  if version ~= ARGV[1] then
    kept[#kept + 1] = entry
    newest = version or newest -- others are somebody's hand's
  end
end
redis.call('HDEL', KEYS[1], '-')
redis.call('HSET', KEYS[1], 'versions', table.concat(kept, ' '))
if ARGV[1] == ctl[1] then
  redis.call('HSET', KEYS[1], 'policy', newest)
end
if ARGV[1] == ctl[2] then
  redis.call('HSET', KEYS[1], 'eval_policy', '0')
end
return 1
