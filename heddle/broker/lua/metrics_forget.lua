-- Forget the metrics of updates above one, as the holder of the seat: they were rolled back and will be done again.
-- Runs when the memory is full: nothing but XDEL is written.
-- KEYS  1 ctl (hash)  2 metrics (stream)
-- ARGV  1 seat epoch  2 last update that stays
-- Reply {"OK", entries deleted} | {"FENCED"} | {"GONE"}
if redis.call('EXISTS', KEYS[1]) == 0 then
  return {'GONE'}
end
if tonumber(redis.call('HGET', KEYS[1], 'seat_epoch') or '0') ~= tonumber(ARGV[1]) then
  return {'FENCED'}
end
local deleted, before = 0, '+'
while true do
  local page = redis.call('XREVRANGE', KEYS[2], before, '-', 'COUNT', 64)
  local doomed, stays = {}, 0
  for _, entry in ipairs(page) do
    local update -- nil, too, of what somebody wrote by hand
    for i = 1, #entry[2], 2 do
      if entry[2][i] == 'update' then
        update = tonumber(entry[2][i + 1])
        break
      end
    end
    if update and update > tonumber(ARGV[2]) then
      doomed[#doomed + 1] = entry[1]
    elseif update then
      stays = stays + 1
    end
    before = '(' .. entry[1]
  end
  if #doomed > 0 then
    deleted = deleted + redis.call('XDEL', KEYS[2], unpack(doomed))
  end
  -- One entry that somebody wrote by hand among ours must not end this before its time.
  if (#page < 64 and (#doomed < #page or #page == 0)) or (#doomed == 0 and stays > 0) then
    return {'OK', deleted}
  end
end
