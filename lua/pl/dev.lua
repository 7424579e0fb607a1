-- Devices, and the one that eager tensors live on.
local abi, schema, err = require "pl.abi", require "pl.schema", require "pl.err"
local arg = require "pl.arg"
local C = abi.C
local M = {}

local Dev = {}
Dev.__index = Dev

--- Open a CPU device. o.threads: 0 = one per core; o.path: "portable", "avx2", ... (default: the fastest
--- there is).
function M.open(o)
  o = schema.check("device", { threads = schema.whole(0), path = "string" }, o or {})
  local path = abi.path[o.path or "auto"]
  if not path then err.unknown("this program", o.path, err.names(abi.path)) end
  local opts, out = abi.new "pl_dev_opts", abi.new "pl_dev *[1]"
  opts.kind, opts.n_threads, opts.path = C.PL_DEV_CPU, o.threads or 0, path
  abi.check(C.pl_dev_open(out, opts, abi.err))
  return setmetatable({ ptr = abi.gc(out[0], C.pl_dev_close), stream = C.pl_dev_stream(out[0]) }, Dev)
end

--- One line: device, path, threads, and what was measured of them.
function Dev:describe()
  local text, rates = abi.new "char[160]", {}
  C.pl_dev_describe(self.ptr, text, 160)
  for i, f in ipairs(self.fitted or {}) do rates[i] = ("%.1f with %d"):format(f.gb_s, f.threads) end
  return abi.string(text) .. (rates[1] and "; GB/s read: " .. table.concat(rates, ", ") or "")
end
--- Measures, once, how fast all threads read memory, half of them, a quarter, and so on down to four; from then on
--- steps of few tokens run on as many as did best. Some 30 ms. Returns { { threads =, gb_s = }, ... }.
function Dev:fit()
  if self.fitted then return self.fitted end
  local fit, out = abi.new "pl_fit[16]", {}
  for i = 0, abi.check(C.pl_dev_fit(self.ptr, fit, 16, abi.err)) - 1 do
    out[i + 1] = { threads = fit[i].n_threads, gb_s = fit[i].gb_s }
  end
  self.fitted = out
  return out
end
function Dev:path() return abi.string(C.pl_path_name(C.pl_dev_path(self.ptr))) end
function Dev:threads() return tonumber(C.pl_dev_threads(self.ptr)) end
--- Products computed so far, by path.
function Dev:counts()
  local t = {}
  for name, i in pairs(abi.path) do t[name] = tonumber(C.pl_dev_path_count(self.ptr, i)) end
  return t
end
Dev.__tostring = Dev.describe

local current, options

local Closed = arg.closed "device"

--- Give up the device; what is on it stays valid, and new tensors get a device of their own.
function Dev:close()
  if current == self then current = nil end
  C.pl_dev_close(abi.gc(self.ptr, nil))
  self.ptr, self.stream = nil, nil
  setmetatable(self, Closed)
end

--- Options of the device that `get` opens; a device that is open already stays for the tensors it has.
function M.set(o)
  current, options = M.open(o), o
  return current
end

--- The device of eager tensors and of models, opened when first asked for.
function M.get()
  if not current then current = M.open(options) end
  return current
end

arg.handles("device", Dev, "ptr", "stream")
M.set = arg.check("device", "pl.device", { "o?", "table" }, nil, M.set)
local function not_open(d)
  if type(d) ~= "table" or getmetatable(d) ~= Dev then
    return ("called on %s, want a device (with a colon)"):format(schema.show(d))
  end
  if not rawget(d, "ptr") then return "this device is closed" end
end
arg.methods("dev", Dev, not_open, { describe = {}, path = {}, threads = {}, fit = {}, counts = {} })

return M
