-- The cache of a pool: its format, its size, and the scales of an FP8 one.
local abi, err, file, json, schema = require "pl.abi", require "pl.err", require "pl.file", require "pl.json",
  require "pl.schema"
local C, e, check = abi.C, abi.err, abi.check
local M = {}

--- Formats of a cache, as pools name them.
M.formats = { f32 = "f32", bf16 = "bf16", fp8 = "f8" }
--- What shares a scale in an FP8 cache: all keys (and all values) of a layer, those of a head, or a token's in a head,
--- found when the token comes. The first two are calibrated.
M.scales = { tensor = C.PL_SCALE_TENSOR, head = C.PL_SCALE_HEAD, token = C.PL_SCALE_TOKEN }
M.checks = { off = C.PL_CHECK_OFF, pages = C.PL_CHECK_PAGES, ["pages+digest"] = C.PL_CHECK_DIGESTS }

--- Tokens of cache per sequence: as given, or the pool's, or the model's own context up to 4096.
function M.context(model, pool, given)
  local n, most = given or pool.context, model.max_context
  if n and most and n > most then
    err.raise(("context: %.0f tokens, the model was made for at most %.0f"):format(n, most))
  end
  return n or math.min(most or 4096, 4096)
end

--- pl_kv_opts for a recipe's cache c, held as a pool says: kv, kv_scale, and cache_bytes for all of it, or context
--- tokens for each of batch sequences. Returns it and figures: bytes_per_token, tokens, pages, bytes.
function M.options(c, pool, context)
  local o = abi.new "pl_kv_opts"
  o.layers, o.heads, o.key_dim, o.value_dim, o.page = c.layers, c.heads, c.key_dim, c.value_dim, c.page
  o.dtype = abi.dtype[M.formats[pool.kv]]
  o.scale = pool.kv == "fp8" and M.scales[pool.kv_scale] or C.PL_SCALE_NONE
  local page_bytes = tonumber(C.pl_kv_page_bytes(o))
  if page_bytes == 0 then
    err.raise(("cache: %.0f layers of %.0f heads x (%.0f + %.0f), want at most 65536 layers and 2^31 in a row"):format(
      c.layers, c.heads, c.key_dim, c.value_dim))
  end
  local pages = pool.cache_bytes and math.floor(pool.cache_bytes / page_bytes)
    or math.ceil(context / c.page) * pool.batch
  if pages < 1 then
    err.raise(("cache: %d bytes, want at least %d: one page of %d tokens"):format(pool.cache_bytes, page_bytes, c.page))
  end
  o.n_pages = pages
  return o, { bytes_per_token = page_bytes / c.page, tokens = pages * c.page, pages = pages, page = c.page,
    bytes = pages * page_bytes, format = pool.kv, scale = pool.kv == "fp8" and pool.kv_scale or nil }
end

local DISK_BLOCK = 4096 -- core/tier_file.c: a page's header, and what pages are rounded up to

--- What lies behind the cache, as a pool says: { host = { bytes, pages, tokens }, disk = { bytes, pages, tokens,
--- directory } }, each only where there is one. figures: those of M.options.
function M.tiers(pool, figures)
  local page_bytes, t = figures.bytes / figures.pages, {}
  local function tier(what, bytes, slot)
    local pages = math.floor(bytes / slot)
    if pages < 1 then
      err.raise(("%s: %.0f, want at least %.0f: one page of %d tokens"):format(what, bytes, slot, figures.page))
    end
    return { bytes = pages * slot, pages = pages, tokens = pages * figures.page }
  end
  if pool.host_cache_bytes then t.host = tier("host_cache_bytes", pool.host_cache_bytes, page_bytes) end
  if pool.disk_cache_bytes then
    t.disk = tier("disk_cache_bytes", pool.disk_cache_bytes,
      DISK_BLOCK + math.ceil(page_bytes / DISK_BLOCK) * DISK_BLOCK)
    t.disk.directory = pool.disk_cache
  end
  return t
end

-- Calibration -------------------------------------------------------------------------------------------------

local LEAST, MOST = 2 ^ -126, 2 ^ 127 -- of a float
local function numbers(n)
  return function(v)
    if type(v) ~= "table" or #v ~= n then return ("%s, want %d numbers"):format(schema.show(v), n) end
    for i = 1, n do
      if type(v[i]) ~= "number" or not (v[i] >= LEAST and v[i] <= MOST) then
        return schema.show(v[i]) .. ", want a number above 0"
      end
    end
  end
end

--- Scales from a file that `perilune calibrate` wrote, checked against a cache: { key = { [layer] = { a number a head }
--- }, value = ... }. identity: of the weights that they are for (see pl.checkpoint); scales of others, with the same
--- shape, would only make answers worse. nil, or a file that does not say whose they are: a warning; false: no weights
--- are at hand.
function M.read_scales(path, c, identity)
  local ok, t = pcall(json.decode, file.need(path, file.text))
  if not ok or type(t) ~= "table" then
    error(err.new("want the JSON object that `perilune calibrate` writes", nil, path, 1), 0)
  end
  if t.layers ~= c.layers or t.heads ~= c.heads then
    error(err.new(("scales of %s layers and %s heads, the cache has %d and %d"):format(schema.show(t.layers),
      schema.show(t.heads), c.layers, c.heads), nil, path, 1), 0)
  end
  if identity and type(t.weights_id) == "string" and t.weights_id ~= identity then
    error(err.new(("scales of other weights (%s), these are %s"):format(t.weights_id:sub(1, 40), identity),
      { "perilune calibrate MODEL --file TEXT --out SCALES.json" }, path, 1), 0)
  elseif identity ~= false and not (identity and type(t.weights_id) == "string") then
    io.stderr:write(("perilune: %s: are its scales for these weights? %s from before this was written down\n"):format(
      path, identity and "It is" or "The packed file is"))
  end
  for _, what in ipairs { "key", "value" } do
    if type(t[what]) ~= "table" or #t[what] ~= c.layers then
      error(err.new(("'%s': want a list for each of %d layers"):format(what, c.layers), nil, path, 1), 0)
    end
    for i = 1, c.layers do
      local bad = numbers(c.heads)(t[what][i])
      if bad then error(err.new(("'%s' of layer %d: %s"):format(what, i - 1, bad), nil, path, 1), 0) end
    end
  end
  return t
end

local function largest(list)
  local most, all = 0, {}
  for _, v in ipairs(list) do most = math.max(most, v) end
  for i = 1, #list do all[i] = most end
  return all
end

--- Gives an FP8 cache its scales. kind tensor: the largest of a layer's heads holds for all of them.
function M.set_scales(kv, kind, t)
  for i = 1, #t.key do
    local k, v = t.key[i], t.value[i]
    if kind == "tensor" then k, v = largest(k), largest(v) end
    check(C.pl_kv_set_scales(kv, i - 1, abi.array("float", k), abi.array("float", v), e))
  end
end

--- The scales that a pool's cache needs before its first step, read and checked, or nil; a missing calibration is an
--- error at load.
function M.scales_of(c, pool, identity)
  if pool.kv ~= "fp8" or pool.kv_scale == "token" then return nil end
  if not pool.kv_scales then
    err.raise(("an fp8 cache with a scale per %s has no scales"):format(pool.kv_scale),
      { "perilune calibrate MODEL --file TEXT --out SCALES.json, then --kv-scales SCALES.json",
        "or --kv-scale token: scales that are found as tokens come" })
  end
  return M.read_scales(pool.kv_scales, c, identity)
end

--- Gives a cache what it needs before its first step.
function M.ready(kv, c, pool, identity)
  local t = M.scales_of(c, pool, identity)
  if t then M.set_scales(kv, pool.kv_scale, t) end
end

local E4M3_MAX = 448

--- Largest magnitudes of a sequence's keys and values, in an f32 cache, as scales: the largest value seen becomes the
--- largest code.
function M.measure(kv, seq, c, scales)
  local key, value = abi.new("float[?]", c.heads), abi.new("float[?]", c.heads)
  for layer = 0, c.layers - 1 do
    check(C.pl_kv_amax(kv, seq, layer, key, value, e))
    local k, v = scales.key[layer + 1] or {}, scales.value[layer + 1] or {}
    for h = 1, c.heads do
      local a, b = key[h - 1], value[h - 1]
      if not (a < math.huge and b < math.huge) then
        err.raise(("calibrate: layer %d, head %d: keys or values are no numbers (damaged weights, or a recipe's error)")
          :format(layer, h - 1))
      end
      k[h] = math.max(k[h] or 1e-12, key[h - 1] / E4M3_MAX)
      v[h] = math.max(v[h] or 1e-12, value[h - 1] / E4M3_MAX)
    end
    scales.key[layer + 1], scales.value[layer + 1] = k, v
  end
end

return M
