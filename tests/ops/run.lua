-- run.lua [OP...]: checks the CPU kernels of ops through the C ABI. Each file beside this one is one op:
-- its sizes, its attributes, a tolerance, and its definition in plain Lua doubles. For every case and every
-- path of this machine: values against the definition; the same bits on all paths, with 1, 2 and 3 threads,
-- from views whose padding is poisoned (and stays so), for each row alone; no failure on empty tensors; the
-- errors that the op promises.
local ffi = require "ffi"
ffi.cdef(require "pl.h.text")
ffi.cdef(require "pl.ops.text")
ffi.cdef "typedef union { float f; uint32_t u; } bits32;"
local C = ffi.C
local T = { C = C, n_passed = 0, n_failed = 0 }

local err = ffi.new "pl_err[1]"
function T.try(rc)
  if rc < 0 then error(("code %d: %s"):format(rc, ffi.string(err[0].msg)), 2) end
  return rc
end
T.err = err

function T.check(ok, fmt, ...)
  if ok then
    T.n_passed = T.n_passed + 1
  else
    T.n_failed = T.n_failed + 1
    if T.n_failed < 40 then print("FAILED " .. fmt:format(...)) end
  end
end

-- devices, one for each path and number of threads that is asked for
local devs = {}
function T.dev(path, threads)
  local key = path * 64 + threads
  if not devs[key] then
    local d = ffi.new "pl_dev *[1]"
    T.try(C.pl_dev_open(d, ffi.new("pl_dev_opts", { kind = C.PL_DEV_CPU, path = path, n_threads = threads }),
      err))
    devs[key] = d[0]
  end
  return devs[key]
end
T.paths = {}
for path = C.PL_PATH_PORTABLE, C.PL_N_PATHS - 1 do
  if C.pl_dev_has_path(path) then T.paths[#T.paths + 1] = path end
end
function T.path_name(path) return ffi.string(C.pl_path_name(path)) end

-- numbers
local union = ffi.new "bits32"
function T.bits(x) union.f = x return union.u end
function T.f32(x) union.f = x return union.f end -- also of the sum of two floats, and so on
function T.bf16(x)
  union.f = x
  local u = tonumber(union.u)
  if x ~= x then return x end
  local low, high = u % 65536, math.floor(u / 65536)
  if low > 32768 or (low == 32768 and high % 2 == 1) then high = high + 1 end
  union.u = high * 65536
  return union.f
end
function T.f8(x) -- E4M3: ties to even, at most 448
  local a = math.min(math.abs(x), 448)
  if x ~= x or a == 0 then return x end
  local _, e = math.frexp(a)
  local unit = math.ldexp(1, math.max(e - 4, -9))
  local n = math.floor(a / unit)
  local rest = a / unit - n
  if rest > 0.5 or (rest == 0.5 and n % 2 == 1) then n = n + 1 end
  return math.min(n * unit, 448) * (x < 0 and -1 or 1)
end
local seed = 1
function T.seed(n) seed = n end
function T.uniform() -- in [-1, 1), a float
  seed = (seed * 16807) % 2147483647
  return T.f32(seed / 1073741824 - 1)
end
function T.normal() return T.f32((T.uniform() + T.uniform() + T.uniform()) * 1.2) end
--- Fills n blocks of a block format with random bytes whose scales are moderate numbers.
function T.random_blocks(code, p, n)
  local bytes = C.pl_dtype_bytes(code)
  local name = ffi.string(C.pl_dtype_name(code))
  local function byte() return math.floor((T.uniform() + 1) * 128) end
  for i = 0, n * bytes - 1 do p[i] = byte() end
  for i = 0, (n - 1) * bytes, bytes do
    local b = p + i
    if name == "mxfp4" then
      b[0] = 115 + byte() % 12
    elseif name == "nvfp4" then -- one float a tensor
      ffi.cast("float *", b)[0] = -300
      for j = 4, 5 do b[j] = bit.band(b[j], 0x7b) end
    elseif name:find "^f8g" then
      ffi.cast("float *", b)[0] = T.uniform() * 0.1
      for j = 4, bytes - 1 do b[j] = bit.band(b[j], 0xf7) end
    elseif name:find "^i4g" then
      b[1] = bit.bor(bit.band(b[1], 0xbd), 0x38)
    elseif name:find "^u4g" then
      b[1] = bit.band(b[1], 0x2f)
      b[2] = (256 - b[2] % 17) % 256
    else -- small halves, wherever the format keeps them
      for _, at in ipairs { 1, 3, bytes - 1 } do b[at] = bit.band(b[at], 0x2f) end
    end
  end
end
function T.list(n, f)
  local t = {}
  for i = 1, n do t[i] = f(i) end
  return t
end

-- tensors: { t = pl_tensor[1], dims =, dtype =, outer = what lies around a view }
local scope = {}
local function keep(t) scope[#scope + 1] = t return t end
function T.release()
  for _, t in ipairs(scope) do C.pl_tensor_release(t) end
  scope = {}
end
local function count(dims)
  local n = 1
  for _, d in ipairs(dims) do n = n * d end
  return n
end
T.count = count
local dtypes = { f32 = C.PL_F32, f16 = C.PL_F16, bf16 = C.PL_BF16, f8 = C.PL_F8, i32 = C.PL_I32 }

local function raw(dev, dtype, dims)
  local t = keep(ffi.new "pl_tensor[1]")
  T.try(C.pl_tensor_new(t, dev, dtype, #dims, ffi.new("int64_t[4]", dims), err))
  return t
end
function T.slice(t, axis, from, n)
  local v = keep(ffi.new "pl_tensor[1]")
  T.try(C.pl_tensor_slice(v, t, axis, from, n, err))
  return v
end

-- values: a list, or nil for poison. view: the tensor is part of a larger one, whose other bytes are 0xff.
function T.tensor(dev, dims, dtype, values, view)
  local code, outer_dims = assert(dtypes[dtype or "f32"]), {}
  for i, d in ipairs(dims) do outer_dims[i] = d end
  if view then
    outer_dims[1] = outer_dims[1] + 2
    outer_dims[#dims] = outer_dims[#dims] + 5
  end
  local outer = raw(dev, code, outer_dims)
  local size = C.pl_dtype_bytes(code)
  ffi.fill(outer[0].data, count(outer_dims) * size, 0xff)
  local t = outer
  if view then
    if #dims > 1 then t = T.slice(t, 0, 1, dims[1]) end
    t = T.slice(t, #dims - 1, 3, dims[#dims])
  end
  local x = { t = t, outer = view and outer, dims = dims, dtype = dtype or "f32", size = size,
    n = count(dims) }
  if values then
    assert(#values == x.n)
    if dtype == "i32" then T.try(C.pl_tensor_set_i32(t, ffi.new("int32_t[?]", x.n + 1, values), x.n, err))
    else T.try(C.pl_tensor_set_f32(t, ffi.new("float[?]", x.n + 1, values), x.n, err)) end
  end
  return x
end
function T.get(x)
  local out = ffi.new("float[?]", x.n + 1)
  T.try(C.pl_tensor_get_f32(x.t, out, x.n, err))
  return out
end
-- whether every byte around a view still is 0xff
function T.untouched(x)
  if not x.outer then return true end
  local o, v = x.outer[0], x.t[0]
  local base, inside = ffi.cast("uint8_t *", o.data), {}
  local first = ffi.cast("uint8_t *", v.data) - base
  local function mark(axis, at)
    if axis == v.ndim then
      for i = 0, x.size - 1 do inside[at + i] = true end
      return
    end
    for i = 0, tonumber(v.dim[axis]) - 1 do mark(axis + 1, at + i * tonumber(v.stride[axis]) * x.size) end
  end
  mark(0, tonumber(first))
  local total = x.size
  for i = 0, o.ndim - 1 do total = total * tonumber(o.dim[i]) end
  for i = 0, total - 1 do
    if not inside[i] and base[i] ~= 0xff then return false end
  end
  return true
end
local function same_float(a, b) return T.bits(a) == T.bits(b) or (a ~= a and b ~= b) end
function T.same(a, b, n, fmt, ...)
  for i = 0, n - 1 do
    if not same_float(a[i], b[i]) then
      return T.check(false, "%s: value %d is %.9g, not %.9g", fmt:format(...), i, b[i], a[i])
    end
  end
  T.check(true)
end
-- y against the definition: |y - ref| <= abs + rel |ref|; NaN where the definition has one
function T.near(y, ref, tol, fmt, ...)
  local abs, rel = tol.abs or 0, tol.rel or 0
  for i, r in ipairs(ref) do
    local v = y[i - 1]
    local good = v == r or (v ~= v and r ~= r) or math.abs(v - r) <= abs + rel * math.abs(r)
    if not good then return T.check(false, "%s: value %d is %.9g, want %.9g", fmt:format(...), i - 1, v,
      r) end
  end
  T.check(true)
end
function T.expect_error(rc, code, text, what)
  local msg = ffi.string(err[0].msg)
  T.check(rc == C[code] and msg:find(text, 1, true), "%s: code %d, '%s', want %s, '%s'", what, rc, msg, code,
    text)
end

-- An op file with `cases`: each { name =, x = { name = { dims, values, dtype } }, y = { dims, dtype }, attr
-- = }.
local function build(dev, case, view)
  local x = {}
  for name, v in pairs(case.x) do x[name] = T.tensor(dev, v[1], v[3], v[2], view) end
  return x, T.tensor(dev, case.y[1], case.y[2], nil, view)
end
local function pointers(x)
  local p = {}
  for name, v in pairs(x) do p[name] = v.t end
  return p
end
local function run_case(op, def, case, path, threads, view)
  local dev = T.dev(path, threads)
  local x, y = build(dev, case, view)
  T.try(def.call(C, C.pl_dev_stream(dev), y.t, pointers(x), case.attr or {}, err))
  if view then
    T.check(T.untouched(y), "%s %s: %s wrote beside y", op, case.name, T.path_name(path))
  end
  local out = T.get(y)
  T.release()
  return out, y.n
end

-- row i of every tensor that def.rows names, alone
local function run_row(def, case, i)
  local dev = T.dev(C.PL_PATH_AUTO, 1)
  local x, y = build(dev, case)
  local p = pointers(x)
  for _, name in ipairs(def.rows) do p[name] = T.slice(p[name], 0, i, 1) end
  local part = T.slice(y.t, 0, i, 1)
  T.try(def.call(C, C.pl_dev_stream(dev), part, p, case.attr or {}, err))
  local n = y.n / y.dims[1]
  local out = ffi.new("float[?]", n)
  T.try(C.pl_tensor_get_f32(part, out, n, err))
  T.release()
  return out, n
end

local function run_in_place(def, case)
  local dev = T.dev(C.PL_PATH_AUTO, 2)
  local x = build(dev, case)
  T.try(def.call(C, C.pl_dev_stream(dev), x[def.in_place].t, pointers(x), case.attr or {}, err))
  local out = T.get(x[def.in_place])
  T.release()
  return out
end

local function run_empty(op, def, case)
  local dev = T.dev(C.PL_PATH_AUTO, 2)
  local empty = { x = {}, y = { { 0, unpack(case.y[1], 2) }, case.y[2] } }
  for name, v in pairs(case.x) do empty.x[name] = v end
  for _, name in ipairs(def.rows) do empty.x[name] = { { 0, unpack(case.x[name][1], 2) }, {},
    case.x[name][3] } end
  local x, y = build(dev, empty)
  local rc = def.call(C, C.pl_dev_stream(dev), y.t, pointers(x), case.attr or {}, err)
  T.check(rc == 0, "%s %s: no rows: %s", op, case.name, rc == 0 and "" or ffi.string(err[0].msg))
  T.release()
end

local function check_cases(op, def)
  for _, case in ipairs(def.cases) do
    local want, n = run_case(op, def, case, C.PL_PATH_AUTO, 1)
    local values = {}
    for name, v in pairs(case.x) do values[name] = v[2] end
    T.near(want, def.ref(case, values), case.tol or def.tol, "%s %s", op, case.name)
    for _, path in ipairs(T.paths) do
      T.same(want, run_case(op, def, case, path, 1), n, "%s %s: path %s", op, case.name, T.path_name(path))
      T.same(want, run_case(op, def, case, path, 2, true), n, "%s %s: view, path %s", op, case.name,
        T.path_name(path))
    end
    for threads = 2, 3 do
      local y = run_case(op, def, case, C.PL_PATH_AUTO, threads)
      T.same(want, y, n, "%s %s: %d threads", op, case.name, threads)
    end
    if def.in_place then T.same(want, run_in_place(def, case), n, "%s %s: in place", op, case.name) end
    if def.rows then
      local rows = case.y[1][1]
      for i = 0, rows - 1, math.max(1, math.floor(rows / 3)) do
        local y, m = run_row(def, case, i)
        T.same(want + i * m, y, m, "%s %s: row %d alone", op, case.name, i)
      end
      run_empty(op, def, case)
    end
  end
end

local function check_errors(op, def)
  local dev = T.dev(C.PL_PATH_AUTO, 2)
  for _, e in ipairs(def.errors or {}) do
    local x, y = build(dev, e)
    T.expect_error(def.call(C, C.pl_dev_stream(dev), y.t, pointers(x), e.attr or {}, err), e.code, e.text, op)
    T.release()
  end
end

-- every op of the catalogue that has a file; or those named
local names = { unpack(arg or {}) }
if #names == 0 then
  for i = 0, C.pl_op_count() - 1 do names[#names + 1] = ffi.string(C.pl_op_name(i)) end
end
local have = {}
for i, path in ipairs(T.paths) do have[i] = T.path_name(path) end
print("paths of this machine: " .. table.concat(have, ", "))
-- collectives need ranks on threads: tests/c/coll.c
local elsewhere = { sum_ranks = 1, all_gather = 1, reduce_scatter = 1, all_to_all = 1, broadcast = 1 }
for _, op in ipairs(names) do
  if not elsewhere[op] then
    local before = T.n_failed
    T.seed(#op * 7919 + 17)
    local def = assert(loadfile("tests/ops/" .. op .. ".lua"))()(T)
    if def.cases then check_cases(op, def) end
    check_errors(op, def)
    if def.check then def.check() end
    T.release()
    if T.n_failed > before then print(op .. ": failed") end
  end
end
for _, d in pairs(devs) do C.pl_dev_close(d) end
print(("%d passed, %d failed"):format(T.n_passed, T.n_failed))
assert(T.n_failed == 0)
