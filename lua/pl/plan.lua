-- What a model will need, before any of it is loaded: bytes of weights per class and format, cache bytes per
-- token, activations of a step.
local abi, cache, program = require "pl.abi", require "pl.cache", require "pl.program"
local C = abi.C
local M = {}

-- Bytes that one weight takes on the CPU, and the format it is held in. stored: its format in the checkpoint.
local function held(w, pool, stored)
  local format = pool:format_of(w)
  if format == "stored" then format = stored or "bf16" end
  local dtype, n = abi.dtype[format], 1
  for _, d in ipairs(w.shape) do n = n * d end
  if w.product then
    return tonumber(C.pl_dev_packed_bytes(C.PL_DEV_CPU, dtype, w.shape[1], w.shape[2])), format
  end
  return n / C.pl_dtype_block(dtype) * C.pl_dtype_bytes(dtype), format
end

--- Figures of a traced model. infos: what a checkpoint says of each weight (pl.load.check), or nil: then
--- "stored" counts as bf16. context: tokens of cache to count, per sequence of the batch.
function M.figures(model, trace, pool, infos, context)
  local p = { recipe = model.name, pool = pool.name, act = pool.act, weights = {}, weight_bytes = 0,
    parameters = 0, ops = #trace.ops }
  local rows = {}
  for _, w in ipairs(trace.used) do
    local info = infos and infos[w.weight]
    local bytes, format = held(w, pool, info and info.dtype)
    local act = "-"
    if w.product then -- where codes are no integers, int8 is bf16 and int15 is f32
      local done = C.pl_act_for(abi.act[pool:act_of(w.class)], abi.dtype[format])
      for name, code in pairs(abi.act) do if code == done then act = name end end
    end
    local key, n = w.class .. "\0" .. format .. "\0" .. act, 1
    for _, d in ipairs(w.shape) do n = n * d end
    local row = rows[key]
    if not row then
      row = { class = w.class, format = format, act = act, weights = 0, parameters = 0, bytes = 0 }
      rows[key], p.weights[#p.weights + 1] = row, row
    end
    if w.dtype == "i32" then n = 0 end -- an order of columns
    row.weights, row.parameters, row.bytes = row.weights + 1, row.parameters + n, row.bytes + bytes
    p.weight_bytes, p.parameters = p.weight_bytes + bytes, p.parameters + n
  end
  table.sort(p.weights, function(a, b)
    if a.bytes ~= b.bytes then return a.bytes > b.bytes end
    return a.class .. a.format .. a.act < b.class .. b.format .. b.act
  end)
  p.context = cache.context(model, pool, context)
  p.batch, p.tokens = pool.batch, pool.tokens
  local _, c = cache.options(model.cache, pool, p.context)
  p.cache, p.cache_format, p.page = c, c.format, c.page
  p.tiers = cache.tiers(pool, c)
  p.cache_bytes_per_token, p.cache_bytes = c.bytes_per_token, c.bytes
  local prog = program.build(trace, nil, nil, pool.tokens, math.min(pool.batch, pool.tokens))
  p.activation_bytes = prog.bytes
  prog:close()
  p.total_bytes = p.weight_bytes + p.cache_bytes + p.activation_bytes + (p.tiers.host and p.tiers.host.bytes or 0)
  return p
end

local function size(n)
  if n < 1000 then return ("%d B"):format(n) end
  for _, u in ipairs { { "GB", 1e9 }, { "MB", 1e6 }, { "kB", 1e3 } } do
    if n >= u[2] then return ("%.1f %s"):format(n / u[2], u[1]) end
  end
end
M.size = size

--- The figures as a table of lines.
function M.text(p)
  local out = { ("%s, pool '%s': %d ops, %.1fM parameters, act %s"):format(p.recipe, p.pool, p.ops,
    p.parameters / 1e6, p.act) }
  out[2] = ("  %-8s %-6s %-5s %8s %12s %10s"):format("class", "format", "act", "weights", "parameters", "bytes")
  for _, w in ipairs(p.weights) do
    out[#out + 1] = ("  %-8s %-6s %-5s %8d %12d %10s"):format(w.class, w.format, w.act, w.weights, w.parameters,
      size(w.bytes))
  end
  out[#out + 1] = ("  weights      %10s"):format(size(p.weight_bytes))
  out[#out + 1] = ("  cache        %10s  %s%s, %d bytes a token, %d tokens in %d pages"):format(size(p.cache_bytes),
    p.cache_format, p.cache.scale and (" (a scale per %s)"):format(p.cache.scale) or "", p.cache_bytes_per_token,
    p.cache.tokens, p.cache.pages)
  for _, where in ipairs { "host", "disk" } do
    local t = p.tiers[where]
    if t then
      out[#out + 1] = ("  %s cache   %10s  %d tokens in %d pages%s"):format(where, size(t.bytes), t.tokens, t.pages,
        t.directory and ", in " .. t.directory or "")
    end
  end
  out[#out + 1] = ("  activations  %10s  steps of up to %d tokens, %d rows"):format(size(p.activation_bytes),
    p.tokens, math.min(p.batch, p.tokens))
  out[#out + 1] = ("  together     %10s"):format(size(p.total_bytes))
  return table.concat(out, "\n")
end

return M
