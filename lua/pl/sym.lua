-- Symbolic tensors: what a recipe handles while it is being traced. A size is a number, or "T" (tokens of the
-- step) or "R" (rows whose results are wanted). Views move no data: they are an offset and strides into a
-- base value.
local err = require "pl.err"
local M = { trace = nil } -- the running trace, or nil: ops are eager then

local methods = {}
local mt = { __index = methods, __metatable = false }

local function sizes(shape)
  local o = {}
  for i, d in ipairs(shape) do o[i] = tostring(d) end
  return "[" .. table.concat(o, ",") .. "]"
end

--- "[T,64] partial": as errors show it.
function M.shape_text(s) return sizes(s.shape) .. (s.partial and " partial" or "") end
M.sizes = sizes

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

local optional = { "base", "view", "cut", "partial", "class", "weight", "options", "values", "product",
  "file", "line" }

--- New symbol. from: where it came from, for errors. t may hold
---   base: the value of the trace that it is or looks into; dtype; cut: the axis that ranks share; partial:
---   true
---   while it is only this rank's part of a sum; class, weight, ...: of a declared weight (weights.lua)
function M.new(shape, from, t)
  t = t or {}
  t.shape, t.from = shape, from
  t.dtype = t.dtype or "f32"
  t.offset = t.offset or 0
  t.stride = t.stride or dense(shape)
  -- so that a misspelt name can be told
  for _, k in ipairs(optional) do if t[k] == nil then t[k] = false end end
  return setmetatable(t, mt)
end

function M.is(x) return type(x) == "table" and rawget(x, "shape") ~= nil and rawget(x, "stride") ~= nil end

function mt.__tostring(s) return M.shape_text(s) .. " <- " .. s.from end
function mt.__add(a, b) return require("pl.op").add(a, b) end

local function view(s, shape, stride, offset, cut)
  if s.weight then
    err.raise(("views of weights are not possible: %s"):format(s.weight), { "x      " .. tostring(s) })
  end
  if not s.base then err.raise("a view of a tensor outside of any trace") end
  return M.new(shape, s.from, { base = s.base, dtype = s.dtype, offset = s.offset + offset, stride = stride,
    cut = cut, partial = s.partial, view = true })
end

local function copy(t)
  local o = {}
  for i, v in ipairs(t) do o[i] = v end
  return o
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
  axis = check_axis("slice", self, axis)
  if from < 0 or n < 1 or from + n > self.shape[axis] then
    err.raise(("slice: %d to %d of axis %d, which has %d"):format(from, from + n, axis, self.shape[axis]),
      { "x      " .. tostring(self) })
  end
  local shape = copy(self.shape)
  shape[axis] = n
  return view(self, shape, copy(self.stride), from * self.stride[axis], self.cut)
end

--- a, b, ... = x:split({ n, m, ... }, axis): parts of an axis (default: the last).
function methods:split(parts, axis)
  axis = check_axis("split", self, axis)
  local sum, out = 0, {}
  for _, n in ipairs(parts) do sum = sum + n end
  if sum ~= self.shape[axis] then
    err.raise(("split: sizes add to %d, axis %d is %s"):format(sum, axis, tostring(self.shape[axis])),
      { "x      " .. tostring(self) })
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
  local s = self.shape
  if #s ~= 2 then
    err.raise(("heads: x has %d dimensions, want 2"):format(#s), { "x      " .. tostring(self) })
  end
  if s[2] % h ~= 0 then
    err.raise(("heads: %d columns do not divide into %d heads"):format(s[2], h),
      { "x      " .. tostring(self) })
  end
  local d = s[2] / h
  return view(self, { s[1], h, d }, { self.stride[1], d * self.stride[2], self.stride[2] }, 0, self.cut)
end

--- x:flat(): [T, H, D] seen as [T, H*D].
function methods:flat()
  local s, st = self.shape, self.stride
  if #s ~= 3 then
    err.raise(("flat: x has %d dimensions, want 3"):format(#s), { "x      " .. tostring(self) })
  end
  if st[2] ~= s[3] * st[3] then
    err.raise("flat: the heads do not lie side by side", { "x      " .. tostring(self) })
  end
  return view(self, { s[1], s[2] * s[3] }, { st[1], st[3] }, 0, self.cut and 2)
end

--- x:reshape(T, ...): other sizes, the same number of values; the first axis stays.
function methods:reshape(...)
  local shape, st = { ... }, dense(self.shape)
  local n, m = 1, 1
  for i = 2, #self.shape do n = n * self.shape[i] end
  for i = 2, #shape do m = m * shape[i] end
  if shape[1] ~= self.shape[1] or n ~= m then
    err.raise(("reshape: %s to %s"):format(sizes(self.shape), sizes(shape)), { "x      " .. tostring(self) })
  end
  for i = 2, #st do
    if st[i] ~= self.stride[i] then
      err.raise("reshape: x does not lie densely", { "x      " .. tostring(self) })
    end
  end
  local stride = dense(shape)
  stride[1] = self.stride[1]
  return view(self, shape, stride, 0, nil)
end

function methods:size(axis) return self.shape[axis] end

setmetatable(methods, { __index = function(_, k)
  if type(k) == "string" then
    err.unknown("a tensor", k, { "slice", "split", "heads", "flat", "reshape", "size", "shape", "dtype",
      "from" })
  end
end })

return M
