-- Tracing: forward runs once on symbols; what comes out is a list of values and a list of ops over them,
-- which pl.program turns into the flat C program. Everything is checked here, at the author's line.
local err, sym, weights = require "pl.err", require "pl.sym", require "pl.weights"
local arg, schema = require "pl.arg", require "pl.schema"
local M = {}

-- The layer that pl.each_layer is at, for eager calls too.
local current = {}

--- for i in pl.each_layer(n): 0 to n-1, and ops on the cache belong to layer i meanwhile.
function M.each_layer(n)
  local i, outer = -1, current.layer
  return function()
    i = i + 1
    M.set_layer(i < n and i or outer)
    return i < n and i or nil
  end
end
function M.layer() return current.layer end

--- Go to a layer, or to none: an error or a break leaves a loop of each_layer without its end.
function M.set_layer(i)
  current.layer = i
  if sym.trace then sym.trace:at_layer(i) end
end

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
  local tr = sym.trace
  if not tr then return require("pl.tensor").new(numbers) end
  local s = tr.consts[numbers]
  if not s then
    local copy = {}
    for i, v in ipairs(numbers) do copy[i] = v end
    s = sym.handle(sym.new({ #copy }, "a constant", { values = copy }))
    tr.consts[numbers] = s
  end
  return s
end

--- Sum over the ranks that share a weight's axis: makes a partial product whole.
function M.sum_ranks(x)
  if not sym.trace then -- one rank
    if not require("pl.tensor").is(x) then err.raise(("sum_ranks: %s, want a tensor"):format(schema.show(x))) end
    return x
  end
  local s = sym.of(x)
  if not s then err.raise(("sum_ranks: %s, want a tensor"):format(schema.show(x))) end
  if not s.partial then
    err.raise("sum_ranks: the value is already whole on every rank", { "x      " .. tostring(s) })
  end
  local t = {}
  for k, v in pairs(s) do t[k] = v end
  t.partial, t.cut = nil, nil
  return sym.handle(sym.new(s.shape, s.from, t))
end

arg.functions("pl", M, { each_layer = { "n", schema.whole(0) },
  const = { "numbers", schema.list(schema.number(-3.4e38, 3.4e38)) }, sum_ranks = { "x", arg.any } })

-- The cache as forward sees it while it is traced.
local kv_methods = {}
function kv_methods:append(k, v) return require("pl.op").kv_append(self, k, v) end
local kv_shown = { layers = 1, heads = 1, key_dim = 1, value_dim = 1, pos = 1, rows = 1 }
local kv_mt = { __metatable = false }
function kv_mt.__index(h, k)
  if kv_methods[k] then return kv_methods[k] end
  if kv_shown[k] then return sym.of(h)[k] end
  local names = err.names(kv_shown)
  names[#names + 1] = "append"
  err.unknown("kv", k, names)
end
function kv_mt.__newindex(_, k) err.raise(("the cache cannot be changed: '%s' is set"):format(tostring(k))) end

-- The last line of a function that does something: `return f(x)` leaves no frame, so what f does is counted there.
local function last_line(f)
  local last = 0
  for line in pairs(debug.getinfo(f, "L").activelines) do last = math.max(last, line) end
  return last
end

-- A trace of a model for a pool, and what forward is called with.
local function new(model, pool)
  local tr = setmetatable({ pool = pool, values = {}, n_values = 0, ops = {}, of = {}, used = {}, declared = {},
    consts = {}, filled = {}, ordered = {}, last_line = last_line(model.forward) }, Trace)
  tr:at_layer(nil)
  for _, w in ipairs(model.weight_list) do tr.declared[w] = true end
  local function input(name, shape)
    local s = sym.new(shape, name, { dtype = "i32" })
    s.base = tr:add { kind = "input", dtype = "i32", shape = shape }
    return sym.handle(s)
  end
  local c, ids = model.cache, input("token ids", { "T" })
  tr.kv = { is_kv = true, layers = c.layers, heads = c.heads, key_dim = c.key_dim, value_dim = c.value_dim,
    pos = input("positions", { "T" }), rows = input("wanted rows", { "R" }) }
  return tr, ids, weights.strict(model.weights, "weights"), sym.handle(tr.kv, kv_mt)
end

--- Runs model.forward on symbols for one pool. model: { forward, dims, weights, cache }, as pl.recipe makes
--- it. Returns { values, n_values, ops, result, used, vocab, hidden, width }: hidden and width (of the hidden states)
--- are nil where forward returns logits alone.
function M.run(model, pool)
  pool:check_classes(model.weight_list)
  assert(not sym.trace, "a trace within a trace")
  local c, tr = model.cache, nil
  local function wrong(msg, ...)
    err.raise_at(model.forward, msg, { ... })
  end
  local function forward() -- from the start each time: the box may call it twice
    local ids, w, kv
    tr, ids, w, kv = new(model, pool)
    sym.trace, current.layer = tr, nil
    local result, hidden = model.forward(ids, w, kv, model.dims)
    if not sym.is(result) then
      wrong(("forward returned %s, want a tensor"):format(result == nil and "nothing" or schema.show(result)))
    end
    local y = sym.of(result)
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
    local h = sym.of(hidden)
    if hidden ~= nil and not sym.is(hidden) then
      wrong(("forward returned %s beside the logits, want hidden states"):format(schema.show(hidden)))
    elseif h and (#h.shape ~= 2 or h.shape[1] ~= "T" or h.view or not h.base or h.partial or h.cut) then
      wrong(("forward returned %s beside the logits, want [T,D], the hidden states"):format(sym.shape_text(h)),
        "h      " .. tostring(h), "as nn.logits(x, w, kv, d) returns them")
    end
    return y, h
  end
  local layer = current.layer
  local ok, y, h = pcall(model.box.call, model.box, forward)
  sym.trace, current.layer = nil, layer
  if not ok then
    if err.is(y) and #y.notes < 6 and not tostring(y.notes[#y.notes]):find "^while tracing" then
      y.notes[#y.notes + 1] = "while tracing " .. tr.where
    end
    error(y, 0)
  end
  return { values = tr.values, n_values = tr.n_values, ops = tr.ops, result = y.base, used = tr.used,
    vocab = y.shape[2], hidden = h and h.base, width = h and h.shape[2] }
end

return M
