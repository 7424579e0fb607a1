-- util.lua: medians, the machine and the commit, and CSV files, for the other scripts (dofile "bench/util.lua").
local M = {}

--- Median, least and most of a list.
function M.median(list)
  local s = { unpack(list) }
  table.sort(s)
  return (s[math.floor((#s + 1) / 2)] + s[math.ceil((#s + 1) / 2)]) / 2, s[1], s[#s]
end

function M.output(command)
  local p = assert(io.popen(command))
  local text = p:read "*a"
  p:close()
  return text
end

--- The commit, with "-dirty" where files are not as it has them; the results themselves do not count.
function M.commit()
  local name = M.output "git describe --always 2>/dev/null":gsub("%s", "")
  local changed = M.output "git status --porcelain --untracked-files=no -- . ':!bench/results' 2>/dev/null"
  return changed == "" and name or name .. "-dirty"
end
function M.cpu()
  return (M.output "sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1":gsub("%s+$", ""):gsub(",", " "))
end

--- A function(...) that adds a row to bench/results/NAME.csv, which begins with `header`.
function M.csv(name, header)
  local path = ("bench/results/%s.csv"):format(name)
  local old = io.open(path)
  if old then old:close() end
  local f = assert(io.open(path, "a"))
  f:setvbuf "line"
  if not old then f:write(header, "\n") end
  return function(...) f:write(table.concat({ ... }, ","), "\n") end
end

return M
