-- bugs.lua BUILD [NAME]: does the suite notice bugs? Each entry changes one place of the kernels; the changed
-- sources are built for the CPU, plain and with the checker, and must fail tests/gpu/ops.c in at least one.
local build, only = arg[1], arg[2]
local linear, rms, common = "linear.cu", "rms_norm.cu", "common.cuh"

local bugs = {
  { "rms-no-barrier", rms, "    __syncthreads();\n    v = part[0];", "    v = part[0];" },
  { "rms-tail-too-far", rms, "i < d; i += THREADS) {\n        const",
    "i <= d; i += THREADS) {\n        const" },
  { "rms-rows-past-end", rms, "if (THREADS == 32 && row >= n_rows) return;", "" },
  { "rms-vector-unaligned", rms, "d4 = VEC ? d / 4 * 4 : 0", "d4 = d / 4 * 4" },
  { "vec-unaligned", linear, "p.vec = w_vec && pl_rows_aligned(x, 4)", "p.vec = true" },
  { "sum-wrong-lane", common, "for (int o = 16; o; o >>= 1) v +=", "for (int o = 8; o; o >>= 1) v +=" },
  { "rows-dims-swapped", common, "q / m.d1 * m.s0 + q % m.d1 * m.s1", "q / m.d1 * m.s1 + q % m.d1 * m.s0" },
  { "vec-no-barrier", linear, "    __syncthreads();\n    const int r = threadIdx.x / T",
    "    const int r = threadIdx.x / T" },
  { "vec-rows-past-end", linear, "w + (r < n_rows ? r : 0) * p.w_stride", "w + r * p.w_stride" },
  { "vec-tail-whole", linear, "p.vec && p.k - k >= 8", "p.vec" },
  { "vec-warp-left-out", linear, "i < WARPS; i++) v += part[i]", "i < WARPS - 1; i++) v += part[i]" },
  { "tile-rows-past-end", linear, "left = row < rows ? k - at : 0", "left = k - at + 0 * rows" },
  { "tile-k-tail-whole", linear, "pl_cp_async16(to, from, (int)left * 2)",
    "pl_cp_async16(to, from, left ? 16 : 0)" },
  { "tile-wait-lax", linear, "pl_cp_wait<S::STAGES - 2>()", "pl_cp_wait<S::STAGES - 1>()" },
  { "tile-no-barrier", linear, "__syncthreads(); // step's", "// step's" },
  { "tile-no-commit", linear, "STAGES - 1);\n        pl_cp_commit();", "STAGES - 1);" },
  { "tile-fragment-order", linear, "* 16, s, false)", "* 16, s, true)" },
  { "tile-swizzle", linear, "(c ^ (r & 7)) * 8;\n        int64_t left",
    "(c ^ (r & 3)) * 8;\n        int64_t left" },
  { "tile-mma-divergent", linear, "pl_mma_bf16(acc[i][j]", "if (n0 + lane < p.n) pl_mma_bf16(acc[i][j]" },
  { "tile-reuse-early", linear, "        pl_cp_wait<0>();\n        __syncthreads();",
    "        pl_cp_wait<0>();" },
  { "tile-sums-early", linear, "__syncthreads();\n        if (wk > 0) return;", "if (wk > 0) return;" },
  { "tile-y-of-first-chunk", linear, "p.y = y + t * p.y_stride", "p.y = y" },
  { "round-reads-past-end", linear, "2 * i + 1 < k ? from[2 * i + 1] : 0.f", "from[2 * i + 1]" },
  { "round-pitch-unaligned", linear, "pitch = pl_round_up(p.k, 128)", "pitch = pl_round_up(p.k, 2)" },
}

local files = dofile "tests/files.lua"
local read, write = files.read, files.write
local function sh(fmt, ...) return os.execute(fmt:format(...)) == 0 end

local flags = "-std=c++17 -O1 -g1 -w -fPIC -fvisibility=hidden -ffp-contract=off -fno-strict-aliasing"
  .. (" -DPL_CUDA_SCRATCH=65536 -Ikernels/simt/include -Ikernels/simt -Icore -I%s/gen"):format(build)
local modes = { { "plain", "", nil, 6 }, { "check", "-fsanitize=thread", "check", 2 } }
local dir = build .. "/bugs"
assert(sh("mkdir -p %s && cp kernels/cuda/*.cu kernels/cuda/*.cuh %s/", dir, dir))

-- the unchanged part, once a mode: the runtime, and the kernels that a bug does not touch
local units = { "dev.cu", rms, linear }
local function compile(mode, unit, out)
  return sh("g++ %s %s -I%s -x c++ -c %s/%s -o %s", flags, mode[2], dir, dir, unit, out)
end
for _, m in ipairs(modes) do
  local out = dir .. "/" .. m[1]
  assert(sh("mkdir -p %s", out))
  assert(sh("gcc -O1 -fPIC -D_GNU_SOURCE -DPL_VERSION='\"0\"' -Icore -c core/base.c -o %s/base.o", out))
  for _, src in ipairs { "rt", "sync", "cudart", m[3] } do
    assert(sh("g++ %s -c kernels/simt/simt_%s.cpp -o %s/%s.o", flags, src, out, src))
  end
  for _, u in ipairs(units) do assert(compile(m, u, ("%s/%s/%s.o"):format(dir, m[1], u))) end
end

local function run(m, changed)
  local objects = ("%s/%s/*.o"):format(dir, m[1])
  local so = ("%s/%s.so"):format(dir, m[1])
  local keep = {}
  for _, u in ipairs(units) do
    if changed[u] then
      local o = ("%s/%s/%s.o"):format(dir, m[1], u)
      keep[u] = read(o)
      if not compile(m, u, o) then error("does not compile: " .. u) end
    end
  end
  local link = "-Wl,-z,defs -Wl,-z,nodelete -Wl,--version-script=kernels/simt/exports.txt -lpthread"
  assert(sh("g++ -shared -o %s %s %s", so, objects, link))
  for u, o in pairs(keep) do write(("%s/%s/%s.o"):format(dir, m[1], u), o) end
  -- in a shell of its own, so that a crash is a result and not a message
  local ok = sh("timeout 300 sh -c '%s/test_gpu_ops %s --schedules %d; exit $?' >%s/out.txt 2>&1", build, so,
    m[4], dir)
  if ok then return false, "missed" end
  local out = read(dir .. "/out.txt")
  local code = out:match "%[simt (%d+)%]"
  return true, code and "report " .. code or out:match "FAIL" and "wrong" or "crash"
end

local caught, missed = 0, 0
assert(not run(modes[1], {}), "the suite fails without a bug") -- run() says true when it noticed something
for _, b in ipairs(bugs) do
  local name, file, from, to = unpack(b)
  if not only or name == only then
    local original = read("kernels/cuda/" .. file)
    local at, last = original:find(from, 1, true)
    assert(at, name .. ": the place to change is gone")
    assert(not original:find(from, last + 1, true), name .. ": the place to change is not unique")
    write(dir .. "/" .. file, original:sub(1, at - 1) .. to .. original:sub(last + 1))
    local changed = { [file] = true }
    if file == common then changed = { [rms] = true, [linear] = true } end
    local a, plain = run(modes[1], changed)
    local c, check = run(modes[2], changed)
    write(dir .. "/" .. file, original)
    print(("%-24s plain: %-12s checker: %s"):format(name, plain, check))
    io.flush()
    if a or c then caught = caught + 1 else missed = missed + 1 end
  end
end
print(("bugs: %d caught, %d missed"):format(caught, missed))
os.exit(missed == 0 and 0 or 1)
