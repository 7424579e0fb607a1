-- Pools: how a set of devices holds a model. Format per weight class, activations, cache, sizes of a step.
local err, file, schema = require "pl.err", require "pl.file", require "pl.schema"
local M = {}

local formats = { stored = true, f32 = true, bf16 = true }
local acts = { f32 = true, bf16 = true, int8 = true, int15 = true }
local whole = schema.whole

-- A name for all weights, or one per class, `rest` for the others.
local function act_wrong(v)
  if type(v) ~= "table" then return schema.wrong(v, acts) end
  for c, a in next, v do
    local bad = type(c) ~= "string" and schema.show(c) .. " is no weight class" or schema.wrong(a, acts)
    if bad then return bad end
  end
end

local fields = {
  act = act_wrong,         -- what activations are rounded to before a product; also per class, as weights
  kv = { f32 = true, bf16 = true, fp8 = true }, -- format of the cache; act's if absent, and f32 with act f32
  kv_scale = { tensor = true, head = true, token = true }, -- what shares a scale in an fp8 cache; default tensor
  kv_scales = "string",    -- file of scales (perilune calibrate), for tensor and head; beside the recipe's file
  weights = "table",       -- format per class; `rest` for the others; "stored" = as the checkpoint has it
  batch = whole(1),        -- sequences, and rows of logits, of one step
  tokens = whole(1),       -- tokens of one step
  chunk = whole(1),        -- of these, tokens of prompts while requests decode; default an eighth, at least 64
  context = whole(1),      -- tokens that the cache has room for, per sequence of the batch
  cache_bytes = whole(1, 2 ^ 53), -- or bytes of the whole cache
  host_cache_bytes = whole(1, 2 ^ 53), -- pages that the prefix cache loses go on in host memory
  disk_cache_bytes = whole(1, 2 ^ 53), -- and then in a file of this size,
  disk_cache = "string",   -- in this directory: it outlives the program, and serves the same model only
  queue = whole(0),        -- requests that may wait beside those of the batch; more are refused
  prefix = "boolean",      -- keep full pages, and find them again by their tokens; default true
  threads = whole(0),      -- CPU threads; 0 = one per core, and measured (pl.dev)
  fronts = whole(0, 64),   -- threads that read requests and long prompts beside the engine; default 2; 0: its own
}

M.fields = fields

local LEAST_CHUNK = 64
--- Tokens of prompts in a step in which requests decode, where a step takes so many and a pool says `chunk` (or nil).
function M.chunk(tokens, chunk)
  return math.min(tokens, chunk or math.max(LEAST_CHUNK, math.floor(tokens / 8)))
end

local methods = {}
local mt = { __index = methods, __metatable = false }

--- act: a name, or { class = name, rest = name }.
--- pl.pool { act =, kv =, weights = { class = format, rest = format }, batch =, tokens =, context =, threads
--- = }
function M.new(t)
  local p = schema.check("pool", fields, t)
  local w = {}
  for c, f in next, p.weights or {} do
    if type(c) ~= "string" then err.raise(("pool.weights: %s is no weight class"):format(schema.show(c))) end
    if not formats[f] then
      err.raise(("pool.weights.%s: %s, want one of bf16 f32 stored"):format(tostring(c), schema.show(f)))
    end
    w[c] = f
  end
  if not p.weights then w.rest = "stored" end
  p.weights = w
  p.file, p.line = err.where()
  return setmetatable(p, mt)
end

function M.is(p) return type(p) == "table" and debug.getmetatable(p) == mt end

--- A copy with other values in place (command-line options), and defaults for the rest.
function M.with(self, name, over)
  local given = {}
  for k in pairs(fields) do given[k] = rawget(self, k) end
  local p = M.new(given) -- checked again: a recipe can write in its pool
  p.file, p.line = rawget(self, "file"), rawget(self, "line")
  p.kv_scales, p.disk_cache = file.beside(p.file, p.kv_scales), file.beside(p.file, p.disk_cache)
  for k, v in pairs(over or {}) do
    if fields[k] and k ~= "weights" then
      local bad = schema.wrong(v, fields[k])
      if bad then err.raise(("%s: %s"):format(k, bad)) end
      p[k] = v
    end
  end
  p.name = name
  local per = p.act or "bf16"
  if type(per) == "string" then per = { rest = per } end
  p.class_act = { rest = per.rest or "bf16" }
  local said = {}
  for _, c in ipairs(err.names(per)) do
    p.class_act[c] = per[c]
    if c ~= "rest" then said[#said + 1] = c .. " " .. per[c] end
  end
  table.sort(said)
  said[#said + 1] = (said[1] and "rest " or "") .. p.class_act.rest
  p.act = table.concat(said, ", ")
  if p.act == "f32" and not (over and over.kv) then p.kv = "f32" end
  p.kv = p.kv or "bf16"
  for _, what in ipairs { "kv_scale", "kv_scales" } do
    if over and over[what] and p.kv ~= "fp8" then
      err.raise(("%s: %s, but scales are for a cache in fp8, and this one is in %s"):format(what, over[what], p.kv))
    end
  end
  if over and over.kv_scales and p.kv_scale == "token" then
    err.raise "kv_scales: a cache with a scale per token finds its own"
  end
  p.kv_scale = p.kv_scale or "tensor"
  p.batch, p.tokens, p.threads, p.queue = p.batch or 16, p.tokens or 512, p.threads or 0, p.queue or 256
  p.chunk, p.fronts = M.chunk(p.tokens, p.chunk), p.fronts or 2
  if p.prefix == nil then p.prefix = true end
  if p.disk_cache and not p.disk_cache_bytes or p.disk_cache_bytes and not p.disk_cache then
    err.raise(("disk_cache: %s and %s bytes, want both"):format(schema.show(p.disk_cache or "no directory"),
      p.disk_cache_bytes and ("%.0f"):format(p.disk_cache_bytes) or "no"))
  end
  if not p.prefix and (p.host_cache_bytes or p.disk_cache) then
    err.raise "host_cache_bytes, disk_cache: these keep what the prefix cache loses, and it is off"
  end
  return p
end

--- Every class named here must occur among the weights, and every weight must get a format.
function methods:check_classes(list)
  local known = {}
  for _, w in ipairs(list) do known[w.class] = true end
  local named = err.names(self.weights)
  for _, c in ipairs(err.names(self.class_act)) do named[#named + 1] = c end
  for _, c in ipairs(named) do
    if c ~= "rest" and not known[c] then
      local names = err.names(known)
      table.sort(names)
      local near = err.closest(c, names)
      err.raise_at(self, ("pool '%s': no weights of class '%s'"):format(self.name, c)
        .. (near and (", did you mean '%s'?"):format(near) or ""), { err.known(names) })
    end
  end
  for _, w in ipairs(list) do
    if not self:format_of(w) then
      err.raise_at(self, ("pool '%s' gives no format for weight class '%s'"):format(self.name, w.class),
        { "weight " .. w.weight, ("give weights.%s or weights.rest"):format(w.class) })
    end
  end
end

function methods:format_of(w)
  if w.dtype == "i32" then return "stored" end -- an order of columns
  return #w.shape == 1 and "f32" or self.weights[w.class] or self.weights.rest
end

function methods:act_of(class) return self.class_act[class] or self.class_act.rest end

setmetatable(methods, { __index = function(_, k) if type(k) == "string" and not fields[k] and k ~= "name"
  and k ~= "class_act"
  and k ~= "file" and k ~= "line" then err.unknown("pool", k, err.names(fields)) end end })
return M
