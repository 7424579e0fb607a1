-- A trace as the flat C program: values and ops in order, one planned block of memory for the activations.
local abi, arg = require "pl.abi", require "pl.arg"
local C, e, check = abi.C, abi.err, abi.check
local M = {}

local Program = {}
arg.handles("program", Program, "ptr")
local Closed = arg.closed "program"

local sizes = { T = C.PL_DIM_T, R = C.PL_DIM_R }
local function dims(shape)
  local d = abi.new("int64_t[4]")
  for i, n in ipairs(shape) do d[i - 1] = sizes[n] or n end
  return d
end

-- Without weights (for a plan) a constant still has a shape, and data that nobody reads.
local function placeholder(shape)
  local t, stride = abi.new "pl_tensor", 1
  t._ndim, t._dtype, t._data = #shape, C.PL_F32, abi.cast("void *", 1)
  for i = #shape, 1, -1 do
    t._dim[i - 1], t._stride[i - 1] = shape[i], stride
    stride = stride * shape[i]
  end
  return t
end

--- Build the program of a trace. tensors: weights by symbol, or nil for a plan; dev: nil for a plan.
--- Returns { ptr, bytes, close } with bytes of activations for so many tokens and rows a step.
function M.build(trace, tensors, dev, max_tokens, max_rows)
  local out = abi.new "pl_prog *[1]"
  check(C.pl_prog_new(out, dev and dev.ptr or nil, e))
  local ptr = abi.gc(out[0], C.pl_prog_free)
  local number = { [0] = 0, 1, 2 }
  local stride = abi.new "int64_t[4]"
  for id = 3, trace.n_values - 1 do
    local v = trace.values[id]
    if v.kind == "op" then
      number[id] = check(C.pl_prog_value(ptr, abi.dtype[v.dtype], #v.shape, dims(v.shape), e))
    elseif v.kind == "view" then
      for i, n in ipairs(v.stride) do stride[i - 1] = n end
      number[id] = check(C.pl_prog_view(ptr, number[v.base], v.offset, #v.shape, dims(v.shape), stride, e))
    elseif not tensors then
      number[id] = check(C.pl_prog_const(ptr, placeholder(v.shape), e))
    elseif v.kind == "const" then
      local t = require("pl.tensor").new(v.numbers)
      number[id] = check(C.pl_prog_const(ptr, t, e)) -- the program keeps its own reference
      t:close()
    else
      number[id] = check(C.pl_prog_const(ptr, tensors[v.sym], e))
    end
  end
  local values, attrs = abi.new "int32_t[16]", abi.new "pl_attr[16]"
  for _, o in ipairs(trace.ops) do
    for i, id in ipairs(o.values) do values[i - 1] = id < 0 and -1 or number[id] end
    for i, a in ipairs(o.attrs) do
      if a.kind == "int" then
        attrs[i - 1].i = abi.act[a.value] or a.value
      else
        attrs[i - 1].f = a.value
      end
    end
    check(C.pl_prog_op(ptr, o.op.id, values, #o.values, attrs, #o.attrs, o.line, e))
  end
  if trace.hidden then check(C.pl_prog_set_hidden(ptr, number[trace.hidden], e)) end
  check(C.pl_prog_build(ptr, number[trace.result], max_tokens, max_rows, tensors ~= nil, e))
  local p = { ptr = ptr, bytes = tonumber(C.pl_prog_bytes(ptr)), n_ops = C.pl_prog_n_ops(ptr) }
  function p.close(self)
    if rawget(self, "ptr") then C.pl_prog_free(abi.gc(self.ptr, nil)) end
    self.ptr, self.close = nil, nil
    setmetatable(self, Closed)
  end
  return setmetatable(p, Program)
end

return M
