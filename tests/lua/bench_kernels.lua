-- `perilune bench kernels`: every kernel is measured, and its row has what it should; not how fast.
local cjson = require "cjson"
local abi, kernels, dev, tensor = require "pl.abi", require "pl.bench.kernels", require "pl.dev", require "pl.tensor"
local C = abi.C
local perilune = (os.getenv "PL_BUILD" or "build") .. "/perilune"
local verdicts = dofile "tests/verdicts.lua"
local verdict = verdicts.ok
local function output(args)
  local p = io.popen(("%s bench kernels %s 2>&1; echo $?"):format(perilune, args))
  local text = p:read "*a"
  p:close()
  return text:match "^(.*)\n?(%d+)\n$"
end

-- probes: what they say they did, and bad calls
local d, work = dev.open { threads = 2 }, abi.new "double[1]"
local memory = tensor.zeros({ 300000 }, "f32")
verdict(C.pl_dev_probe(d.ptr, C.PL_PROBE_READ, memory, work, nil) == 0 and work[0] == math.floor(1200000 / 4096) * 4096,
  "the read probe reads whole pages")
verdict(C.pl_dev_probe(d.ptr, C.PL_PROBE_READ, nil, work, nil) == C.PL_EARG, "no memory to read")
verdict(C.pl_dev_probe(d.ptr, C.PL_PROBE_READ, memory:reshape(3, 100000), work, nil) == C.PL_EARG, "memory in rows")
verdict(C.pl_dev_probe(d.ptr, C.PL_N_PROBES, memory, work, nil) == C.PL_EARG, "no such probe")
verdict(C.pl_dev_probe(d.ptr, -1, memory, work, nil) == C.PL_EARG, "no such probe")
verdict(C.pl_dev_probe(d.ptr, C.PL_PROBE_FLOAT, nil, work, nil) == 0 and work[0] > 0, "the float probe")
for name, path in pairs(abi.path) do -- each path has the probes of its instructions, and no others
  if name ~= "auto" and C.pl_dev_has_path(path) then
    local p = dev.open { threads = 1, path = name }
    for probe, has in pairs { PL_PROBE_FLOAT = true, PL_PROBE_INT8 = name ~= "portable",
      PL_PROBE_TILE_BF16 = name == "amx", PL_PROBE_TILE_INT8 = name == "amx" } do
      verdict(C.pl_dev_probe(p.ptr, C[probe], nil, work, nil) == (has and 0 or C.PL_EDEV), name .. ": " .. probe)
    end
    p:close()
  end
end
d:close()

-- every kernel and format, on little
local text, code = output("--bytes 100000 --seconds 0 --rows 1 --json --kernel "
  .. table.concat(kernels.kernels, ","))
verdict(code == "0", "exit " .. tostring(code) .. ": " .. tostring(text))
local seen, f = {}, cjson.decode(text)
for _, r in ipairs(f.rows) do
  seen[r.kernel] = (seen[r.kernel] or 0) + 1
  local what = ("%s %s: "):format(r.kernel, r.format)
  for _, k in ipairs { "us", "bytes", "gb_s", "read_gb_s", "read_share" } do
    verdict(type(r[k]) == "number" and r[k] > 0 and r[k] < math.huge, what .. k)
  end
  for _, k in ipairs { "gop_s", "peak_gop_s", "peak_share" } do
    local want = r.kernel == "linear" or r.kernel == "layers" or r.kernel == "attend"
    verdict(want == (type(r[k]) == "number" and r[k] > 0), what .. k)
  end
  verdict(r.rows == 1 and type(r.threads) == "number" and r.path and r.shape and r.rounds == 3, what .. "the rest")
end
verdict(seen.linear == #kernels.formats and seen.attend == 12 and seen.sample == 5 and seen.layers == 3
  and seen.embed == 4, "all kernels are there")

-- what is asked for, and nothing else
text = output "--bytes 100000 --seconds 0 --rows 3,17 --threads 1,2 --kernel linear --format q4_0 --act f32 --json"
local rows = cjson.decode(text).rows
verdict(#rows == 4 and rows[2].rows == 17 and rows[4].threads == 2 and rows[1].act == "f32", "a choice: " .. text)
text, code = output "--bytes 100000 --seconds 0 --rows 1 --kernel linear --format q4_0"
verdict(code == "0" and text:find "\nlinear    q4_0      bf16 ", "a table: " .. text)
for _, wrong in ipairs { "--kernel gemm", "--format q9", "--act int3", "--rows 0", "--threads x", "--seconds -1",
  "--path sse" } do
  text, code = output(wrong)
  verdict(code == "2", wrong .. ": " .. text)
end
verdicts.done()
