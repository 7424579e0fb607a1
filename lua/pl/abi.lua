-- The C side: the only file that touches ffi. The text of core/pl.h, core/pl_serve.h and core/pl_ops.h is handed over
-- once, as it stands but for one struct; the size of every struct is compared with what the C compiler made of it, so
-- that a stale binary stops here.
local ffi = require "ffi"
local err = require "pl.err"
local M = {}

local header, ops = require "pl.h.text", require "pl.ops.text"
-- The fields of a tensor have a bar in front of their names: a session that wrote one, or counted past the sizes, would
-- compute with memory that is not the tensor's. pl.tensor shows copies under the plain names.
header = header:gsub("(typedef struct pl_tensor )(%b{})", function(head, body)
  return head .. body:gsub("([%l]+)([,;%[])", "_%1%2")
end)
ffi.cdef(header)
ffi.cdef(ops)
local C = ffi.C
M.C = C

for name in header:gmatch "\n}%s*(pl_[%w_]+);" do
  if C.pl_abi_sizeof(name) ~= ffi.sizeof(name) then
    error(("perilune: %s has %d bytes in C and %d in Lua: the header and the program differ"):format(name,
      C.pl_abi_sizeof(name), ffi.sizeof(name)))
  end
end

-- What the other modules need of ffi.
M.new, M.gc, M.string, M.cast, M.istype, M.sizeof = ffi.new, ffi.gc, ffi.string, ffi.cast, ffi.istype,
  ffi.sizeof
M.metatype, M.copy, M.fill, M.typeof = ffi.metatype, ffi.copy, ffi.fill, ffi.typeof

--- The caller's report of the last failure, for every call that takes one.
M.err = ffi.new "pl_err"

-- Codes from PL_ETAG down are conditions: nobody's fault, often expected.
local FIRST_CONDITION = C.PL_ETAG
local codes = {}
for _, name in ipairs { "EARG", "ESHAPE", "EDTYPE", "ENOMEM", "EDEV", "EIO", "EFORMAT", "ENAME", "ELIMIT", "ESTALE",
  "ETAG", "EPAGES", "EFULL", "ECANCEL", "ECLOSED", "ESTARVED", "EBUSY" } do
  codes[C["PL_" .. name]] = name
end

--- What a C function returned: a number of at least 0 as it is; a condition as nil and its code ("EPAGES");
--- anything else is raised as an error object at the author's line.
function M.check(rc, notes)
  if rc >= 0 then return rc end
  local code = codes[rc] or tostring(rc)
  if rc <= FIRST_CONDITION then return nil, code end
  err.raise(ffi.string(M.err.msg), notes, code)
end

--- An array of n elements (zeros), or of a list's; ctype without the brackets.
function M.array(ctype, n)
  if type(n) == "table" then return ffi.new(ctype .. "[?]", math.max(#n, 1), n) end
  return ffi.new(ctype .. "[?]", math.max(n, 1))
end

--- Sizes of a shape, as the C side takes them.
function M.dims(shape)
  local d = ffi.new("int64_t[4]")
  if #shape > 4 then err.raise(("a shape of %d dimensions, want at most 4"):format(#shape)) end
  for i, n in ipairs(shape) do d[i - 1] = n end
  return d
end

--- A text that C has: pointer and bytes, or NUL-terminated; nil for NULL.
function M.text(p, n)
  if p == nil then return nil end
  return n and ffi.string(p, tonumber(n)) or ffi.string(p)
end

function M.version() return ffi.string(C.pl_version()) end

-- Formats by name and number.
M.dtype, M.dtype_name = {}, {}
for i = 0, C.PL_N_DTYPES - 1 do
  local name = ffi.string(C.pl_dtype_name(i))
  M.dtype[name], M.dtype_name[i] = i, name
end
--- What activations are rounded to before a product.
M.act = { bf16 = C.PL_ACT_BF16, f32 = C.PL_ACT_F32, int8 = C.PL_ACT_INT8, int15 = C.PL_ACT_INT15 }
M.path = {}
for i = 0, C.PL_N_PATHS - 1 do M.path[ffi.string(C.pl_path_name(i))] = i end

-- The ops that Lua read from the header are the ones that the program has.
for _, o in ipairs(require("pl.op").all()) do
  local name = C.pl_op_name(o.id)
  if name == nil or ffi.string(name) ~= o.name then
    error("perilune: op " .. o.id .. " is not " .. o.name .. " in C")
  end
end

return M
