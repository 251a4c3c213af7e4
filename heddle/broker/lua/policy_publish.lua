-- Make a policy version known, as the holder of the seat, once all of its bytes are readable. Versions only rise;
-- the same version with the same digest is answered OK again.
-- KEYS  1 ctl (hash)  2 policy (hash)  3.. chunks (strings with TTL)
-- ARGV  1 seat epoch  2 version  3 sha256  4 bytes  5 update  6 news channel  7 weights when there are no chunks
-- Reply {"OK", versions kept} | {"LOWER", latest} | {"NOCHUNK"} | {"FENCED"} | {"GONE"}; versions as "version:chunks:digest ..."
if redis.call('EXISTS', KEYS[1]) == 0 then
  return {'GONE'}
end
local ctl = redis.call('HMGET', KEYS[1], 'seat_epoch', 'policy', 'versions')
local latest, version = tonumber(ctl[2] or '0'), tonumber(ARGV[2])
if tonumber(ctl[1] or '0') ~= tonumber(ARGV[1]) then
  return {'FENCED'}
end
local again = version == latest and redis.call('HGET', KEYS[2], 'sha256') == ARGV[3]
if version <= latest and not again then
  return {'LOWER', string.format('%.0f', latest)}
end
for i = 3, #KEYS do
  if redis.call('EXISTS', KEYS[i]) == 0 then
    return {'NOCHUNK'}
  end
end
for i = 3, #KEYS do
  redis.call('PERSIST', KEYS[i])
end
if again then
  return {'OK', ctl[3] or ''}
end
if type(redis.pcall('HGET', KEYS[2], '-')) == 'table' then -- an error: somebody has put something else there
  redis.call('UNLINK', KEYS[2])
end
local shown = string.format('%.0f', version)
local chunks = string.format('%.0f', #KEYS - 2)
redis.call('HSET', KEYS[2], 'sha256', ARGV[3], 'bytes', ARGV[4], 'update', ARGV[5], 'chunks', chunks, 'seat', ARGV[1])
if #KEYS == 2 then
  redis.call('HSET', KEYS[2], 'weights', ARGV[7])
end
local kept = shown .. ':' .. chunks .. ':' .. string.sub(ARGV[3], 1, 16)
if (ctl[3] or '') ~= '' then
  kept = ctl[3] .. ' ' .. kept
end
redis.call('HSET', KEYS[1], 'policy', shown, 'versions', kept)
redis.call('PUBLISH', ARGV[6], 'policy ' .. shown)
return {'OK', kept}
