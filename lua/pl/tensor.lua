-- Real tensors: a metatype over pl_tensor, and the eager path of the ops. A handle is a struct by value; its
-- finalizer gives up the reference, and close() does so at once, any number of times.
local abi, err, sym = require "pl.abi", require "pl.err", require "pl.sym"
local arg, schema, dev = require "pl.arg", require "pl.schema", require "pl.dev"
local C, e, check = abi.C, abi.err, abi.check
local M = {}

local is = function(x) return abi.istype("pl_tensor", x) or abi.istype("pl_tensor *", x) end
M.is = is
function M.is_open(x) return is(x) and x._ndim > 0 end

-- The collector sees 120 bytes, not the memory behind them: it is made to look after every 256 MB.
local STEP = 256 * 2 ^ 20
local since = 0

local scopes = {} -- of pl.scope: lists of the tensors made meanwhile

--- A handle without a tensor yet, for a C function to fill in.
local function handle()
  local t = abi.gc(abi.new "pl_tensor", C.pl_tensor_release)
  local s = scopes[#scopes]
  if s then s[#s + 1] = t end
  return t
end
M.handle = handle

local function shape_of(t)
  local s = {}
  for i = 1, t._ndim do s[i] = tonumber(t._dim[i - 1]) end
  return s
end
M.shape = shape_of

local function count(t)
  local n = t._ndim > 0 and 1 or 0
  for i = 0, t._ndim - 1 do n = n * tonumber(t._dim[i]) end
  return n
end

--- A new tensor of f32 (or another format by name), values not set.
function M.empty(shape, dtype)
  local t, d = handle(), abi.dims(shape)
  local number = abi.dtype[dtype or "f32"]
  if not number then err.unknown("perilune", dtype, err.names(abi.dtype)) end
  local rc = C.pl_tensor_new(t, dev.get().ptr, number, #shape, d, e)
  if rc == C.PL_ENOMEM then -- what the collector has not looked at yet may be enough
    collectgarbage()
    rc = C.pl_tensor_new(t, dev.get().ptr, number, #shape, d, e)
  end
  check(rc)
  since = since + count(t) * C.pl_dtype_bytes(number)
  if since > STEP then
    since = 0
    collectgarbage()
  end
  return t
end

local function flatten(v, shape, depth, out)
  if type(v) ~= "table" then
    if type(v) ~= "number" then
      err.raise(("tensor: entry %d is %s, want a number"):format(#out + 1, schema.show(v)))
    end
    shape.leaf = shape.leaf or depth
    if shape.leaf ~= depth then err.raise(("tensor: entry %d is a number beside rows"):format(#out + 1)) end
    out[#out + 1] = v
    return
  end
  if depth > 4 then err.raise "tensor: tables in each other more than 4 deep" end
  if shape.leaf and depth >= shape.leaf then
    err.raise(("tensor: entry %d is a row beside numbers"):format(#out + 1))
  end
  if shape[depth] == nil then
    shape[depth] = #v
  elseif shape[depth] ~= #v then
    err.raise(("tensor: a row of %d beside rows of %d"):format(#v, shape[depth]))
  end
  for i = 1, #v do flatten(v[i], shape, depth + 1, out) end
end

--- pl.tensor { { 1, 2 }, { 3, 4 } }: a tensor of these numbers; dtype: "f32" (default), "bf16", "f16", "i32".
function M.new(values, dtype)
  local shape, flat = {}, {}
  flatten(values, shape, 1, flat)
  if #flat == 0 then err.raise("tensor: no values") end
  if dtype == "i32" then
    for i, v in ipairs(flat) do
      local bad = schema.wrong(v, schema.whole(-2 ^ 31))
      if bad then err.raise(("tensor: entry %d is %s"):format(i, bad)) end
    end
  end
  local t = M.empty(shape, dtype)
  return M.set(t, flat)
end

--- Overwrite all values, in row-major order.
function M.set(t, flat)
  if t._dtype == C.PL_I32 then check(C.pl_tensor_set_i32(t, abi.array("int32_t", flat), #flat, e))
  else check(C.pl_tensor_set_f32(t, abi.array("float", flat), #flat, e)) end
  return t
end

--- pl.zeros({ 2, 3 }, dtype)
function M.zeros(shape, dtype)
  local t, n = M.empty(shape, dtype), 1
  for _, d in ipairs(shape) do n = n * d end
  if t._dtype == C.PL_I32 then check(C.pl_tensor_set_i32(t, abi.array("int32_t", n), n, e))
  else check(C.pl_tensor_set_f32(t, abi.array("float", n), n, e)) end
  return t
end

--- pl.scope(f): calls f and closes every tensor made meanwhile, but those that it returns.
function M.scope(f, ...)
  local mine, depth = {}, #scopes + 1
  scopes[depth] = mine
  local r = { pcall(f, ...) }
  scopes[depth] = nil
  local keep = {}
  for i = 2, table.maxn(r) do if is(r[i]) then keep[#keep + 1] = r[i] end end
  for _, t in ipairs(mine) do
    local kept = false
    for _, k in ipairs(keep) do kept = kept or rawequal(k, t) end
    if not kept then C.pl_tensor_release(t) end
  end
  local outer = scopes[depth - 1]
  for _, k in ipairs(keep) do if outer then outer[#outer + 1] = k end end
  if not r[1] then error(r[2], 0) end
  return unpack(r, 2, table.maxn(r))
end

local methods = {}

function methods:close() C.pl_tensor_release(self) end
function methods:type() return abi.dtype_name[self._dtype] end
function methods:size(axis)
  if not axis then return shape_of(self) end
  if axis > self._ndim then err.raise(("size: axis %d of %d"):format(axis, self._ndim)) end
  return tonumber(self._dim[axis - 1])
end
function methods:count() return count(self) end
--- "f32[2,3]": as errors show it.
function methods:describe()
  if self._ndim == 0 then return "closed" end
  return abi.dtype_name[self._dtype] .. sym.sizes(shape_of(self)) .. (self._layout == C.PL_PACKED and " packed"
    or "")
end

--- Views: no data moves; they hold on to what they look into. Counts from 0, axes from 1.
function methods:slice(axis, from, n)
  local t = handle()
  check(C.pl_tensor_slice(t, self, axis - 1, from, n, e))
  return t
end
function methods:reshape(...)
  local shape, t = { ... }, handle()
  if #shape == 0 then err.raise "reshape: no sizes" end
  check(C.pl_tensor_reshape(t, self, #shape, abi.dims(shape), e))
  return t
end
function methods:split(parts, axis)
  axis = axis or self._ndim
  local sum, out, from = 0, {}, 0
  for _, n in ipairs(parts) do sum = sum + n end
  if sum ~= self:size(axis) then
    err.raise(("split: sizes add to %d, axis %d is %d"):format(sum, axis, self:size(axis)),
      { "x      " .. self:describe() })
  end
  for i, n in ipairs(parts) do
    out[i] = self:slice(axis, from, n)
    from = from + n
  end
  return unpack(out)
end
-- A view with other dims over the same memory; the caller has checked that it stays inside.
local function restride(t, shape, stride)
  local v = handle()
  abi.copy(v, t, abi.sizeof "pl_tensor")
  C.pl_tensor_keep(v)
  v._ndim = #shape
  for i = 1, #shape do v._dim[i - 1], v._stride[i - 1] = shape[i], stride[i] end
  return v
end
function methods:heads(h)
  local n = self._ndim == 2 and self:size(2) or 0
  if self._ndim ~= 2 or n % h ~= 0 or self._layout ~= C.PL_ROWS then
    err.raise(("heads: %d heads of %s"):format(h, self:describe()))
  end
  return restride(self, { self:size(1), h, n / h }, { self._stride[0], n / h * self._stride[1],
    self._stride[1] })
end
function methods:flat()
  if self._ndim ~= 3 or self._stride[1] ~= self._dim[2] * self._stride[2] then
    err.raise("flat: the heads of " .. self:describe() .. " do not lie side by side")
  end
  return restride(self, { self:size(1), self:size(2) * self:size(3) }, { self._stride[0], self._stride[2] })
end

--- The same values in another format.
function methods:to(dtype)
  local t = M.empty(shape_of(self), dtype)
  check(C.pl_copy(dev.get().stream, t, self, e))
  return t
end

--- All values as a flat list, in row-major order.
function methods:values()
  local n = count(self)
  local v, out = abi.array("float", math.max(n, 1)), {}
  check(C.pl_tensor_get_f32(self, v, n, e))
  for i = 1, n do out[i] = v[i - 1] end
  return out
end

--- One value; indices count from 0.
function methods:at(...)
  local t = self
  if select("#", ...) ~= self._ndim then
    err.raise(("at: %d indices of %s"):format(select("#", ...), self:describe()))
  end
  for i = 1, self._ndim do t = t:slice(i, (select(i, ...)), 1) end
  return t:values()[1]
end

-- One value in a column of eight.
local function cell(v)
  if v == math.floor(v) and math.abs(v) < 1e6 then return ("%9d"):format(v) end
  local a = math.abs(v)
  return (a >= 1e-3 and a < 1e4) and ("%9.4f"):format(v) or ("%9.2e"):format(v)
end

-- Shape, format, and the first values: at most four rows of six.
local function text(t)
  local head = t:describe()
  if t._ndim == 0 or t._layout ~= C.PL_ROWS or count(t) == 0 or t._dev ~= C.PL_DEV_CPU then return head end
  local lines, rows, cols = { head }, 1, t:size(t._ndim)
  for i = 1, t._ndim - 1 do rows = rows * t:size(i) end
  for r = 0, math.min(rows, 4) - 1 do
    local row, at = t, r
    for i = t._ndim - 1, 1, -1 do
      row, at = row:slice(i, at % t:size(i), 1), math.floor(at / t:size(i))
    end
    local block = C.pl_dtype_block(t._dtype)
    local want = math.min(cols, math.ceil(6 / block) * block)
    local v = row:slice(t._ndim, 0, want):values()
    local cells = {}
    for i = 1, math.min(6, cols) do cells[i] = cell(v[i]) end
    lines[#lines + 1] = " " .. table.concat(cells) .. (cols > 6 and "  ..." or "")
  end
  if rows > 4 then lines[#lines + 1] = ("  ... %d rows"):format(rows) end
  return table.concat(lines, "\n")
end

local function not_open(t)
  if not is(t) then return ("called on %s, want a tensor (with a colon: x:flat())"):format(schema.show(t)) end
  if t._ndim == 0 then return "this tensor is closed" end
end
local function not_a_tensor(t) if not is(t) then return not_open(t) end end
local whole, format = schema.whole, function(v)
  if not abi.dtype[v] then return schema.show(v) .. ", want one of bf16 f16 f32 i32" end
end
arg.methods("x", methods, not_open, sym.views)
arg.methods("x", methods, not_open, { reshape = { "...", whole(1) }, to = { "dtype", format }, values = {}, count = {},
  at = { "...", whole(0) }, type = {} })
arg.methods("x", methods, not_a_tensor, { close = {}, describe = {} })
arg.functions("pl", M, { zeros = { "shape", schema.list(whole(1)), "dtype?", format }, scope = { "f", "function",
  "...", arg.any } })
M.new = arg.check("tensor", "pl.tensor", { "values", "table", "dtype?", format }, nil, M.new)

local meta = { __tostring = text }
arg.no_operators(meta)
function meta.__add(a, b) return require("pl.op").add(a, b) end
function meta.__len() err.raise "a tensor has no length; x:size(axis) gives its sizes" end
-- What C has of a tensor, as copies: see pl.abi.
local function list_of(from, n)
  local out = {}
  for i = 0, n - 1 do out[i] = from[i] end
  return out
end
local fields = { shape = shape_of, ndim = function(t) return t._ndim end, dtype = function(t) return t._dtype end,
  layout = function(t) return t._layout end, dev = function(t) return t._dev end, data = function(t) return t._data end,
  dim = function(t) return list_of(t._dim, t._ndim) end, stride = function(t) return list_of(t._stride, t._ndim) end }
function meta.__index(t, k)
  if fields[k] then return fields[k](t) end
  local m = methods[k]
  if not m then
    local names = err.names(methods)
    names[#names + 1] = "shape"
    err.unknown("a tensor", k, names)
  end
  return m
end
function meta.__newindex(_, k) err.raise(("a tensor has no '%s' to be set"):format(tostring(k))) end
abi.metatype("pl_tensor", meta)

-- Eager ops -------------------------------------------------------------------------------------------------

--- pl.act: what products round activations to, "bf16" (default), "f32", "int8" or "int15".
M.act = "bf16"

--- Of a model's weights whose columns are sorted, the list of where each came from; eager products heed it too.
M.order_of = setmetatable({}, { __mode = "k" })

--- Called by pl.op with checked arguments; sizes(shape_of) gives the shapes of the outputs, or raises.
function M.call(o, args, sizes)
  local outs, call = {}, {}
  for i, shape in ipairs(sizes(shape_of)) do outs[i] = M.empty(shape) end
  local n_out, n = 0, 0
  for _, p in ipairs(o.params) do
    local v
    if p.kind == "stream" then v = dev.get().stream
    elseif p.kind == "err" then v = e
    elseif p.kind == "out" then n_out = n_out + 1; v = outs[n_out]
    elseif p.kind == "kv" then v = args.kv:opened()
    elseif p.kind == "coll" then v = nil -- one rank
    elseif p.name == "act" then
      v = abi.act[M.act]
      if not v then err.raise(("pl.act: %s, want one of bf16 f32 int15 int8"):format(tostring(M.act))) end
    elseif p.name == "layer" then
      v = require("pl.trace").layer()
      if not v then err.raise(o.name .. ": outside of pl.each_layer, so no layer of the cache is meant") end
    else v = args[p.name] end
    n = n + 1
    call[n] = v
  end
  check(C["pl_" .. o.name](unpack(call, 1, n)))
  return unpack(outs)
end

return M
