-- Symbolic tensors: what a recipe handles while it is being traced. A size is a number, or "T" (tokens of the
-- step) or "R" (rows whose results are wanted). Views move no data: they are an offset and strides into a
-- base value. A recipe holds handles that it cannot change; what is known of each is in a record beside it.
local err, arg, schema = require "pl.err", require "pl.arg", require "pl.schema"
local M = { trace = nil } -- the running trace, or nil: ops are eager then

local methods = {}
local mt = { __metatable = false } -- of handles
local record = {}                  -- metatable of records
local of = setmetatable({}, { __mode = "k" }) -- handle -> record

local function sizes(shape)
  local o = {}
  for i, d in ipairs(shape) do o[i] = tostring(d) end
  return "[" .. table.concat(o, ",") .. "]"
end

--- "[T,64] partial": as errors show it.
function M.shape_text(s) return sizes(s.shape) .. (s.partial and " partial" or "") end
M.sizes = sizes

local function copy(t)
  local o = {}
  for i, v in ipairs(t) do o[i] = v end
  return o
end

local function dense(shape)
  local stride, n = {}, 1
  for i = #shape, 1, -1 do
    stride[i] = n
    if i > 1 and type(shape[i]) ~= "number" then
      err.raise(("%s: only the first size can be a number of tokens; are the arguments in order?"):format(sizes(shape)))
    end
    if i > 1 then n = n * shape[i] end
  end
  return stride
end

--- New record. from: where it came from, for errors. t may hold
---   base: the value of the trace that it is or looks into; dtype; cut: the axis that ranks share; partial:
---   true
---   while it is only this rank's part of a sum; class, weight, ...: of a declared weight (weights.lua)
function M.new(shape, from, t)
  t = t or {}
  t.shape, t.from = shape, from
  t.dtype = t.dtype or "f32"
  t.offset = t.offset or 0
  t.stride = t.stride or dense(shape)
  return setmetatable(t, record)
end
function record.__tostring(s) return M.shape_text(s) .. " <- " .. s.from end
function M.is_record(x) return type(x) == "table" and getmetatable(x) == record end

--- The handle that stands for a record (the cache has a metatable of its own), and the record behind a handle
--- (nil if it is none).
function M.handle(s, meta)
  local h = setmetatable({}, meta or mt)
  of[h] = s
  return h
end
function M.of(h) return h ~= nil and of[h] or nil end
function M.is(h) return M.is_record(M.of(h)) end

local shown = { dtype = true, from = true }
function mt.__index(h, k)
  if methods[k] then return methods[k] end
  if k == "shape" then return copy(of[h].shape) end
  if shown[k] then return of[h][k] end
  local names = err.names(methods)
  for _, n in ipairs { "shape", "dtype", "from" } do names[#names + 1] = n end
  err.unknown("a tensor", k, names)
end
function mt.__newindex(_, k) err.raise(("a tensor cannot be changed: '%s' is set"):format(tostring(k))) end
function mt.__tostring(h) return tostring(of[h]) end
function mt.__add(a, b) return require("pl.op").add(a, b) end
arg.no_operators(mt)

local function view(s, shape, stride, offset, cut)
  if s.weight then
    err.raise(("views of weights are not possible: %s"):format(s.weight), { "x      " .. tostring(s) })
  end
  if not s.base then err.raise("a view of a tensor outside of any trace") end
  return M.handle(M.new(shape, s.from, { base = s.base, dtype = s.dtype, offset = s.offset + offset,
    stride = stride, cut = cut, partial = s.partial, view = true }))
end

local function check_axis(what, s, axis)
  axis = axis or #s.shape
  if not s.shape[axis] then
    err.raise(("%s: axis %s of %d"):format(what, tostring(axis), #s.shape), { "x      " .. tostring(s) })
  end
  if type(s.shape[axis]) ~= "number" then
    err.raise(("%s: axis %d is %s, which is not known while tracing"):format(what, axis, s.shape[axis]),
      { "x      " .. tostring(s) })
  end
  return axis
end

--- x:slice(axis, from, n): n entries of an axis, from `from` (counted from 0).
function methods:slice(axis, from, n)
  local s = of[self]
  axis = check_axis("slice", s, axis)
  if from + n > s.shape[axis] then
    err.raise(("slice: %d to %d of axis %d, which has %d"):format(from, from + n, axis, s.shape[axis]),
      { "x      " .. tostring(s) })
  end
  local shape = copy(s.shape)
  shape[axis] = n
  return view(s, shape, copy(s.stride), from * s.stride[axis], s.cut)
end

--- a, b, ... = x:split({ n, m, ... }, axis): parts of an axis (default: the last).
function methods:split(parts, axis)
  local s = of[self]
  axis = check_axis("split", s, axis)
  local sum, out = 0, {}
  for _, n in ipairs(parts) do sum = sum + n end
  if sum ~= s.shape[axis] then
    err.raise(("split: sizes add to %d, axis %d is %s"):format(sum, axis, tostring(s.shape[axis])),
      { "x      " .. tostring(s) })
  end
  local from = 0
  for i, n in ipairs(parts) do
    out[i] = self:slice(axis, from, n)
    from = from + n
  end
  return unpack(out)
end

--- x:heads(h): [T, h*D] seen as [T, h, D].
function methods:heads(h)
  local x = of[self]
  local s = x.shape
  if #s ~= 2 then
    err.raise(("heads: x has %d dimensions, want 2"):format(#s), { "x      " .. tostring(x) })
  end
  if s[2] % h ~= 0 then
    err.raise(("heads: %d columns do not divide into %d heads"):format(s[2], h),
      { "x      " .. tostring(x) })
  end
  local d = s[2] / h
  return view(x, { s[1], h, d }, { x.stride[1], d * x.stride[2], x.stride[2] }, 0, x.cut)
end

--- x:flat(): [T, H, D] seen as [T, H*D].
function methods:flat()
  local x = of[self]
  local s, st = x.shape, x.stride
  if #s ~= 3 then
    err.raise(("flat: x has %d dimensions, want 3"):format(#s), { "x      " .. tostring(x) })
  end
  if st[2] ~= s[3] * st[3] then
    err.raise("flat: the heads do not lie side by side", { "x      " .. tostring(x) })
  end
  return view(x, { s[1], s[2] * s[3] }, { st[1], st[3] }, 0, x.cut and 2)
end

--- x:reshape(T, ...): other sizes, the same number of values; the first axis stays.
function methods:reshape(...)
  local x = of[self]
  local shape, st = { ... }, dense(x.shape)
  local n, m, known = 1, 1, true
  for i = 2, #x.shape do n = n * x.shape[i] end
  for i = 2, #shape do
    known = known and type(shape[i]) == "number"
    m = known and m * shape[i]
  end
  if not known or shape[1] ~= x.shape[1] or n ~= m then
    err.raise(("reshape: %s to %s"):format(sizes(x.shape), sizes(shape)), { "x      " .. tostring(x) })
  end
  for i = 2, #st do
    if st[i] ~= x.stride[i] then
      err.raise("reshape: x does not lie densely", { "x      " .. tostring(x) })
    end
  end
  local stride = dense(shape)
  stride[1] = x.stride[1]
  return view(x, shape, stride, 0, nil)
end

function methods:size(axis)
  local s = of[self].shape
  if not axis then return copy(s) end
  return s[axis] or err.raise(("size: axis %d of %d"):format(axis, #s), { "x      " .. tostring(of[self]) })
end

local whole = schema.whole
--- What the methods take that real tensors have too.
M.views = {
  slice = { "axis", whole(1), "from", whole(0), "n", whole(1) },
  split = { "sizes", schema.list(whole(1)), "axis?", whole(1) },
  heads = { "h", whole(1) }, flat = {}, size = { "axis?", whole(1) },
}
local function not_a_tensor(x)
  if not M.is(x) then return ("called on %s, want a tensor (with a colon: x:flat())"):format(schema.show(x)) end
end
arg.methods("x", methods, not_a_tensor, M.views)
arg.methods("x", methods, not_a_tensor, { reshape = { "...", function(v)
  return v ~= "T" and v ~= "R" and whole(1)(v) or nil
end } })

return M
