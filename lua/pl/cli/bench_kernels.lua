-- perilune bench kernels: bytes and operations a second of each kernel, beside what the machine can do.
local common, cli = require "pl.cli.common", require "pl.cli"
local M = { name = "kernels", about = "bytes and operations a second of the kernels, beside the machine's own limits" }

local function text(s) return s end

function M.options(p)
  p:option("--kernel", "linear, attend, rms_norm, rope, swiglu, embed, sample, layers. Default: all but layers.")
    :convert(common.list(text)):argname "LIST"
  p:option("--format", "Of weights, or (bf16, fp8, fp8/token) of the cache. Default: all."):convert(common.list(text))
    :argname "LIST"
  p:option("--act", "What activations are rounded to before a product. Default: bf16."):convert(common.list(text))
    :argname "LIST"
  p:option("--rows", "Tokens of a call. Default: 1,2,4,8,16,512 of products, 1,512 of others.")
    :convert(common.list(common.whole(1, 65536))):argname "LIST"
  p:option("--threads", "CPU threads; 0 = one per core."):convert(common.list(common.whole(0, 1024))):default "0"
    :argname "LIST"
  p:option("--path", "CPU code path; one that the machine lacks is an error."):choices(common.paths):default "auto"
  p:option("--seconds", "Of each row, at least; three rounds are measured in any case. Default: 0.5.")
    :convert(common.number(0, 3600)):argname "S"
  p:option("--bytes", "Of weights and of caches. Default: twice the last cache, 64 to 512 MB.")
    :convert(common.whole(1, 2 ^ 40)):argname "N"
  common.json(p)
end

function M.run(o)
  local kernels = require "pl.bench.kernels"
  local function names(what, given, known)
    local set = {}
    for _, n in ipairs(known) do set[n] = true end
    for _, n in ipairs(given or {}) do
      if not set[n] then cli.usage(("--%s: '%s', want some of %s"):format(what, n, table.concat(known, ","))) end
    end
  end
  names("kernel", o.kernel, kernels.kernels)
  names("format", o.format, kernels.all_formats)
  names("act", o.act, kernels.acts)
  local function line(s) common.written(io.write(s, "\n") and io.flush()) end
  local f = kernels.run { kernel = o.kernel, format = o.format, act = o.act, rows = o.rows, threads = o.threads,
    path = o.path ~= "auto" and o.path or nil, seconds = o.seconds, bytes = o.bytes,
    on_start = not o.json and function(f) line(kernels.title(f) .. "\n" .. kernels.head) end or nil,
    on_row = not o.json and function(r) line(kernels.line(r)) end or nil }
  if o.json then
    local json = require "pl.json"
    f.rows = json.list(f.rows)
    print(json.encode(f))
  end
  return 0
end

return M
