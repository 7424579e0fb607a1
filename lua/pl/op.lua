-- Ops: one Lua function per prototype of core/pl_ops.h, made from the header's own text. On symbols it checks
-- shapes and records; on tensors it allocates the result and calls the C function of the same name.
-- Arguments are the prototype's, in its order, without the stream, the outputs and err: `op.rms_norm(x, w,
-- eps)`. `act` is filled in from the pool's choice for the weight's class, `layer` by pl.each_layer; a kv
-- argument is the kv object that forward was given. A tensor marked `?` may be nil, and attributes named in
-- `defaults` may be left out.
local err, sym, schema = require "pl.err", require "pl.sym", require "pl.schema"
local M, list, order = {}, {}, {}

local defaults = { embed = { scale = 1 }, rope = { scale = 1, pairs = 0 }, attend = { window = 0 } }
local integers = { ids = true, pos = true, rows = true, cols = true } -- i32 inputs, by name

local function side(text)
  local t = {}
  for name, dims, mark in text:gmatch "([%w_]+)%[([%w_.,]+)%](%??)" do
    local d = {}
    for x in dims:gmatch "[^,]+" do d[#d + 1] = x end
    t[#t + 1] = { name = name, dims = d, optional = mark == "?" }
  end
  return t
end

local kinds = { { "^pl_stream %*", "stream" }, { "^pl_err %*", "err" }, { "^pl_kv %*", "kv" },
  { "^pl_coll %*", "coll" },
  { "^const pl_tensor %*", "in" }, { "^pl_tensor %*", "out" }, { "^int ", "int" }, { "^float ", "float" } }

-- params: all of the prototype, for the eager call; takes: what the Lua caller passes; attrs: numbers, in
-- order
local function parse(header)
  for doc, name, args in header:gmatch "/%*(.-)%*/%s*int pl_([%w_]+)%((.-)%);" do
    local sig = doc:match "\n %*   ([^\n]-)%s*$"
    local left, right = sig:match "^(.-) = (.*)$"
    local o = { name = name, sig = sig, outs = side(left or ""), ins = side(right or sig), id = #order,
      params = {}, takes = {}, attrs = {} }
    local ins = {}
    for _, p in ipairs(o.ins) do ins[p.name] = p end
    for a in args:gsub("%s+", " "):gmatch "%s*([^,]+)" do
      local p = { name = a:match "([%w_]+)%s*$" }
      for _, k in ipairs(kinds) do if not p.kind and a:match(k[1]) then p.kind = k[2] end end
      o.params[#o.params + 1] = p
      if p.kind == "int" or p.kind == "float" then
        o.attrs[#o.attrs + 1] = p
        p.default = defaults[name] and defaults[name][p.name]
        p.filled = p.name == "act" or p.name == "layer"
      elseif p.kind == "in" then
        p.spec = ins[p.name]
      elseif p.kind == "kv" then
        o.kv = true
      end
      if not p.filled and (p.kind == "in" or p.kind == "kv" or p.kind == "int" or p.kind == "float") then
        o.takes[#o.takes + 1] = p
      end
    end
    order[#order + 1], list[name] = o, o
  end
end

local function is_kv(x) return type(x) == "table" and rawget(x, "is_kv") == true end

-- Is x something an op computes with? Records of symbols while tracing, real tensors otherwise.
local function is_tensor(x)
  if sym.trace then return sym.is_record(x) end
  return type(x) == "cdata" and require("pl.tensor").is_open(x)
end

local function what(x)
  if sym.is(x) then return "a symbol of a recipe" end
  if is_kv(x) then return "the cache" end
  if type(x) ~= "cdata" then return schema.show(x) end
  local tensor = require "pl.tensor"
  return tensor.is_open(x) and "a real tensor" or tensor.is(x) and "a closed tensor" or "a cdata"
end

local function usage(o)
  local t = {}
  for i, p in ipairs(o.takes) do
    t[i] = p.name .. ((p.spec and p.spec.optional or p.default ~= nil) and "?" or "")
  end
  return ("takes  op.%s(%s)"):format(o.name, table.concat(t, ", "))
end

local function notes(o, args)
  local n = {}
  for _, p in ipairs(o.takes) do
    if p.kind == "in" and args[p.name] ~= nil then
      local a = args[p.name]
      n[#n + 1] = ("%-6s %s"):format(p.name, sym.is_record(a) and tostring(a) or is_tensor(a) and a:describe()
        or what(a))
    end
  end
  n[#n + 1] = "sign   " .. o.sig
  if sym.trace then n[#n + 1] = "while tracing " .. sym.trace.where end
  return n
end

-- Arguments by name, checked for kind.
local function arguments(o, n, ...)
  local args = {}
  if n > #o.takes then
    err.raise(("%s: %d arguments, want at most %d"):format(o.name, n, #o.takes), { usage(o) })
  end
  for i, p in ipairs(o.takes) do
    local a = (select(i, ...))
    if sym.trace then a = sym.of(a) or a end
    args[p.name] = a
  end
  for i, p in ipairs(o.takes) do
    local a = args[p.name]
    if p.kind == "in" then
      if not is_tensor(a) and not (a == nil and p.spec.optional) then
        err.raise(("%s: argument %d (%s) is %s, want a tensor"):format(o.name, i, p.name, what(a)),
          notes(o, args))
      end
    elseif p.kind == "kv" then
      if not is_kv(a) then
        err.raise(("%s: argument %d (%s) is %s, want the cache"):format(o.name, i, p.name, what(a)),
          notes(o, args))
      end
    elseif a == nil and p.default ~= nil then
      args[p.name] = p.default
    elseif type(a) ~= "number" then
      err.raise(("%s: argument %d (%s) is %s, want a number"):format(o.name, i, p.name, what(a)),
        { usage(o) })
    elseif p.kind == "int" and (a % 1 ~= 0 or math.abs(a) >= 2 ^ 31) then
      err.raise(("%s: argument %d (%s) is %s, want a whole number"):format(o.name, i, p.name, what(a)),
        { usage(o) })
    elseif a - a ~= 0 then
      err.raise(("%s: argument %d (%s) is %s, want a finite number"):format(o.name, i, p.name, what(a)),
        { usage(o) })
    end
  end
  return args
end

-- Sizes that letters stand for: bound by the inputs in order (and the cache), and the same wherever they
-- occur.
local function unify(o, args, shape_of)
  local bound, by = {}, {}
  if args.kv then
    bound.G, bound.V, by.G, by.V = args.kv.heads, args.kv.value_dim, "the cache", "the cache"
    bound.D, by.D = args.kv.key_dim, "the cache"
  end
  for _, p in ipairs(o.ins) do
    local a = args[p.name]
    if a ~= nil then
      local shape, lead = shape_of(a), 0
      if p.dims[1] == "..." then lead = #shape - #p.dims + 1 end
      if lead < 1 and p.dims[1] == "..." or #shape < #p.dims or lead == 0 and #shape > #p.dims then
        err.raise(("%s: %s has %d dimensions, want %s%d"):format(o.name, p.name, #shape, p.dims[1] == "..."
          and "at least " or "",
          #p.dims), notes(o, args))
      end
      local function bind(letter, size)
        if bound[letter] == nil then
          bound[letter], by[letter] = size, p.name
        elseif bound[letter] ~= size then
          err.raise(("%s: %s is %s but %s = %s from %s"):format(o.name, p.name, sym.sizes(shape),
            letter:match "^%." and "a leading size" or letter,
            tostring(bound[letter]), by[letter]), notes(o, args))
        end
      end
      if p.dims[1] == "..." then
        bind(".n", lead)
        for j = 1, lead do bind("." .. j, shape[j]) end
        for j = 2, #p.dims do bind(p.dims[j], shape[lead + j - 1]) end
      else
        for j, c in ipairs(p.dims) do bind(c, shape[j]) end
      end
    end
  end
  return bound
end

local function out_shape(o, p, bound)
  local s = {}
  for _, c in ipairs(p.dims) do
    if c == "..." then
      for j = 1, bound[".n"] do s[#s + 1] = bound["." .. j] end
    else
      if bound[c] == nil then
        err.raise(("%s: the size %s of %s is not known; on one rank use pl.sum_ranks"):format(o.name, c,
          p.name), { "sign   " .. o.sig })
      end
      s[#s + 1] = bound[c]
    end
  end
  return s
end

-- Sharding: ranks share the `cut` axis of a weight. A product over a shared axis leaves a partial sum on
-- every rank; everything but add, and linear with the right weight, works on each rank's own part.
local sharding = {}
function sharding.linear(o, args, y)
  local x, w = args.x, args.w
  local x_cut = x.cut == #x.shape
  if w.cut == 2 and not x_cut then
    err.raise("linear: w is shared along K, but x is whole", notes(o, args))
  end
  if x_cut and w.cut ~= 2 then err.raise("linear: x is shared along K, but w is not", notes(o, args)) end
  if w.cut == 1 then y.cut = 2 elseif w.cut == 2 then y.partial = true end
  if y.partial and args.b then
    err.raise("linear: a bias on a partial sum would be added once per rank", notes(o, args))
  end
end
function sharding.add(o, args, y)
  local a, b = args.a, args.b
  if (a.partial or false) ~= (b.partial or false) then
    err.raise("add: one side is a partial sum, the other is whole; use pl.sum_ranks on the partial side",
      notes(o, args))
  end
  y.partial, y.cut = a.partial, a.cut
end
function sharding.rms_norm(o, args, y)
  if args.x.cut == #args.x.shape then
    err.raise("rms_norm: the axis of x is shared among ranks", notes(o, args))
  end
  y.cut = args.x.cut
end

function sharding.sum_ranks() end

local traced
-- x with its columns in the order of those of w: once for all weights that have them so.
local function in_order(x, w)
  local tr, cols = sym.trace, w.order.same
  tr:value(w.order) -- is loaded and packed with w
  local seen = tr.ordered[x] or {}
  tr.ordered[x] = seen
  seen[cols] = seen[cols] or sym.of((traced(list.columns, { x = x, cols = cols })))
  return seen[cols]
end

function traced(o, args)
  local tr = sym.trace
  local bound = unify(o, args, function(a) return a.shape end)
  for _, p in ipairs(o.ins) do
    local a = args[p.name]
    if a and a.partial and o.name ~= "add" and o.name ~= "sum_ranks" then
      err.raise(("%s: %s is a partial sum; wrap it in pl.sum_ranks first"):format(o.name, p.name),
        notes(o, args))
    end
    local want = integers[p.name] and "i32"
    if a and (a.dtype == "i32") ~= (want == "i32") then
      err.raise(("%s: %s holds %s, want %s"):format(o.name, p.name, a.dtype, want or "numbers"),
        notes(o, args))
    end
    if a and a.order and o.name ~= "linear" then
      err.raise(("%s: the checkpoint has the columns of %s sorted, which only op.linear can use"):format(o.name,
        a.weight), notes(o, args))
    end
  end
  if args.w and args.w.order then args.x = in_order(args.x, args.w) end
  local _, line = err.where()
  line = line or tr.last_line
  local outs = {}
  for i, p in ipairs(o.outs) do
    outs[i] = sym.new(out_shape(o, p, bound), ("%s, line %d"):format(o.name, line))
    local first = args[o.ins[1].name]
    if sharding[o.name] then sharding[o.name](o, args, outs[i]) else outs[i].cut = first.cut end
  end
  tr:record(o, args, outs, line, notes)
  for i, s in ipairs(outs) do outs[i] = sym.handle(s) end
  return unpack(outs)
end

local function make(o)
  return function(...)
    local args = arguments(o, select("#", ...), ...)
    if sym.trace then return traced(o, args) end
    local tensor = require "pl.tensor"
    local cols = o.name == "linear" and tensor.order_of[args.w]
    if cols then args.x = M.columns(args.x, cols) end
    return tensor.call(o, args, function(shape_of)
      local bound, shapes = unify(o, args, shape_of), {}
      for i, p in ipairs(o.outs) do shapes[i] = out_shape(o, p, bound) end
      return shapes
    end)
  end
end

parse(require "pl.ops.text")
for name, o in pairs(list) do M[name] = make(o) end

--- What is known of an op: { name, sig, id, ins, outs, params, takes, attrs }; nil if there is no such op.
function M.info(name) return list[name] end
--- All ops, in the header's order.
function M.all() return order end

return setmetatable(M, { __index = function(_, k) err.unknown("pl.op", k, err.names(list)) end })
