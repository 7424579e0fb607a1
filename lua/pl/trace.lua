-- Tracing: forward runs once on symbols; what comes out is a list of values and a list of ops over them,
-- which pl.program turns into the flat C program. Everything is checked here, at the author's line.
local err, sym, weights = require "pl.err", require "pl.sym", require "pl.weights"
local M = {}

-- The layer that pl.each_layer is at, for eager calls too.
local current = {}

--- for i in pl.each_layer(n): 0 to n-1, and ops on the cache belong to layer i meanwhile.
function M.each_layer(n)
  if type(n) ~= "number" then err.raise(("each_layer: %s, want a number"):format(tostring(n))) end
  local i = -1
  return function()
    i = i + 1
    current.layer = i < n and i or nil
    if sym.trace then sym.trace:at_layer(current.layer) end
    return current.layer
  end
end
function M.layer() return current.layer end

local Trace = {}
Trace.__index = Trace

function Trace:at_layer(i)
  self.layer = i
  self.where = (i and ("layer %d, "):format(i) or "") .. ("pool '%s'"):format(self.pool.name)
end

function Trace:add(v)
  local id = self.n_values
  self.n_values, self.values[id] = id + 1, v
  return id
end

-- Number of the value that a symbol stands for.
function Trace:value(s)
  local id = self.of[s]
  if id then return id end
  if s.weight then
    if not self.declared[s] then err.raise(("%s is not among the recipe's weights"):format(s.weight)) end
    id = self:add { kind = "weight", sym = s, shape = s.shape, format = self.pool:format_of(s) }
    self.used[#self.used + 1] = s
  elseif s.values then
    id = self:add { kind = "const", shape = s.shape, numbers = s.values }
  elseif s.view then
    id = self:add { kind = "view", base = s.base, offset = s.offset, shape = s.shape, stride = s.stride }
  elseif s.base and self.values[s.base] then
    id = s.base
  else
    err.raise("a tensor of another trace", { "x      " .. tostring(s) })
  end
  self.of[s] = id
  return id
end

-- Called by pl.op with checked arguments and fresh output symbols.
function Trace:record(o, args, outs, line, notes)
  local values, attrs = {}, {}
  for _, s in ipairs(outs) do
    s.base = self:add { kind = "op", dtype = s.dtype, shape = s.shape }
    self.of[s] = s.base
    values[#values + 1] = s.base
  end
  local class
  for _, p in ipairs(o.ins) do
    local a = args[p.name]
    values[#values + 1] = a and self:value(a) or -1
    if a and a.weight and o.name == "linear" and p.name == "w" then a.product = true end -- to be packed
    if a and a.weight then class = class or a.class end
  end
  if o.kv then
    if args.kv ~= self.kv then err.raise(o.name .. ": this cache belongs to another trace") end
    if not self.layer then
      err.raise(o.name .. ": outside of pl.each_layer, so no layer of the cache is meant")
    end
    if self.layer >= self.kv.layers then
      err.raise(("%s: layer %d, but the cache has %d"):format(o.name, self.layer, self.kv.layers),
        notes(o, args))
    end
    local filled = self.filled[self.layer]
    if o.name == "kv_append" then
      if filled then
        err.raise(("kv_append: layer %d has its keys already, from line %d"):format(self.layer, filled),
          notes(o, args))
      end
      self.filled[self.layer] = line
    elseif not filled then
      err.raise(("%s: layer %d has no keys yet; kv:append comes first"):format(o.name, self.layer),
        notes(o, args))
    end
  end
  for _, p in ipairs(o.attrs) do
    local v = args[p.name]
    if p.name == "act" then v = self.pool:act_of(class) elseif p.name == "layer" then v = self.layer end
    attrs[#attrs + 1] = { kind = p.kind, value = v }
  end
  self.ops[#self.ops + 1] = { op = o, values = values, attrs = attrs, line = line }
end

--- A constant vector of the recipe: pl.const { 1, 2, 3 } (a table is the same constant wherever it is used).
function M.const(numbers)
  if type(numbers) ~= "table" or #numbers == 0 then err.raise("const: want a list of numbers") end
  local tr = sym.trace
  if not tr then return require("pl.tensor").new(numbers) end
  local s = tr.consts[numbers]
  if not s then
    local copy = {}
    for i, v in ipairs(numbers) do
      if type(v) ~= "number" then err.raise(("const: entry %d is a %s, want a number"):format(i, type(v))) end
      copy[i] = v
    end
    s = sym.new({ #copy }, "a constant", { values = copy })
    tr.consts[numbers] = s
  end
  return s
end

--- Sum over the ranks that share a weight's axis: makes a partial product whole.
function M.sum_ranks(x)
  if not sym.trace then return x end -- one rank
  if not sym.is(x) then err.raise("sum_ranks: want a tensor") end
  if not x.partial then
    err.raise("sum_ranks: the value is already whole on every rank", { "x      " .. tostring(x) })
  end
  local t = {}
  for k, v in pairs(x) do t[k] = v end
  t.partial, t.cut = false, false
  return sym.new(x.shape, x.from, t)
end

--- Runs model.forward on symbols for one pool. model: { forward, dims, weights, cache }, as pl.recipe makes
--- it. Returns { values, n_values, ops, result, used, layers }.
function M.run(model, pool)
  local tr = setmetatable({ pool = pool, values = {}, n_values = 0, ops = {}, of = {}, used = {},
    declared = {},
    consts = {}, filled = {} }, Trace)
  tr:at_layer(nil)
  for _, w in ipairs(model.weight_list) do tr.declared[w] = true end
  pool:check_classes(model.weight_list)
  local function input(name, shape)
    local s = sym.new(shape, name, { dtype = "i32" })
    s.base = tr:add { kind = "input", dtype = "i32", shape = shape }
    return s
  end
  local ids, pos, rows = input("token ids", { "T" }), input("positions", { "T" }), input("wanted rows",
    { "R" })
  local c = model.cache
  tr.kv = { is_kv = true, layers = c.layers, heads = c.heads, key_dim = c.key_dim, value_dim = c.value_dim,
    pos = pos, rows = rows, append = function(kv, k, v) return require("pl.op").kv_append(kv, k, v) end }
  require("pl.schema").strict("kv", tr.kv)
  assert(not sym.trace, "a trace within a trace")
  sym.trace = tr
  local ok, y = pcall(model.box.call, model.box, model.forward, ids, weights.strict(model.weights,
    "weights"), tr.kv, model.dims)
  sym.trace, current.layer = nil, nil
  if not ok then
    if err.is(y) and #y.notes < 6 and not tostring(y.notes[#y.notes]):find "^while tracing" then
      y.notes[#y.notes + 1] = "while tracing " .. tr.where
    end
    error(y, 0)
  end
  local function wrong(msg, ...)
    local notes = { ... }
    notes[#notes + 1] = "while tracing " .. tr.where
    err.raise_at(model.forward, msg, notes)
  end
  if not sym.is(y) then
    wrong(("forward returned %s, want a tensor"):format(y == nil and "nothing" or "a " .. type(y)))
  end
  if y.partial then
    wrong("forward returned a partial sum; wrap it in pl.sum_ranks first", "y      " .. tostring(y))
  end
  if #y.shape ~= 2 or y.shape[1] ~= "R" or y.view or not y.base then
    wrong(("forward returned %s, want [R,V], the wanted rows"):format(sym.shape_text(y)), "y      "
      .. tostring(y),
      "as in  nn.logits(x, w, kv, d), or op.gather(x, kv.rows) before the last product")
  end
  for i = 0, c.layers - 1 do
    if not tr.filled[i] then
      wrong(("the cache has %d layers, but forward appends nothing to layer %d"):format(c.layers, i))
    end
  end
  return { values = tr.values, n_values = tr.n_values, ops = tr.ops, result = y.base, used = tr.used,
    vocab = y.shape[2] }
end

return M
