-- Quantiles of many times, from counts in buckets 2 % wide; within a bucket values are taken to lie evenly.
local M = {}

--- A collection: add(seconds); quantile(q), 0 <= q <= 1; figures(): mean, p50, p90, p95, p99, n.
function M.new()
  local bucket, n, sum = {}, 0, 0
  local h = {}
  function h.add(v)
    local b = v > 1e-6 and math.floor(math.log(v * 1e6) * 50) or -1
    bucket[b] = (bucket[b] or 0) + 1
    n, sum = n + 1, sum + v
  end
  function h.quantile(q)
    local keys, seen = {}, 0
    for b in pairs(bucket) do keys[#keys + 1] = b end
    table.sort(keys)
    for _, b in ipairs(keys) do
      local before = seen
      seen = seen + bucket[b]
      if seen >= q * n then return b < 0 and 0 or math.exp((b + (q * n - before) / bucket[b]) / 50) / 1e6 end
    end
    return 0
  end
  function h.figures()
    local f = { mean = n > 0 and sum / n or 0, n = n }
    for _, p in ipairs { 50, 90, 95, 99 } do f["p" .. p] = h.quantile(p / 100) end
    return f
  end
  return h
end

return M
