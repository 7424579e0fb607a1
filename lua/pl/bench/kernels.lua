-- What the kernels do, in bytes and operations a second, beside what the machine can do at most (pl_dev_probe),
-- measured in turn with each of them: a busy machine changes its speed by the second, so a share is the median over
-- rounds of a probe and the kernel next to each other, not the ratio of two medians. With one thread the clock is the
-- process's CPU time.
local abi, err, schema = require "pl.abi", require "pl.err", require "pl.schema"
local dev, tensor, file = require "pl.dev", require "pl.tensor", require "pl.file"
local C, e, check = abi.C, abi.err, abi.check
local M = {}

--- Formats of weights, and what activations are rounded to.
M.formats = { "f32", "f16", "bf16", "f8", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k", "iq4_nl",
  "mxfp4", "nvfp4", "i4g32", "i4g64", "i4g128", "u4g32", "u4g64", "u4g128", "f8g32", "f8g64", "f8g128" }
M.acts = err.names(abi.act)
table.sort(M.acts)

local K = 4096 -- of a product
local DEPTH, CHUNK, PREFILL = 4096, 1024, 512
local VOCAB = 160000
local MB = 2 ^ 20

--- Bytes of the last cache that the first CPU sees; 0: not known.
function M.cache_bytes()
  local most = 0
  for i = 0, 9 do
    local text = file.read(("/sys/devices/system/cpu/cpu0/cache/index%d/size"):format(i), 64)
    local n, unit = (text or ""):match "^(%d+)([KM]?)"
    if not n then break end
    most = math.max(most, n * (unit == "K" and 1024 or unit == "M" and MB or 1))
  end
  return most
end

--- How much memory to go through, so that no cache holds it: twice the last one, within reason.
function M.beyond_cache() return math.min(math.max(2 * M.cache_bytes(), 64 * MB), 512 * MB) end

-- Data ---------------------------------------------------------------------------------------------------------

-- Fills memory with random bits that are finite in every format: no exponent has its upper bits set.
local function fill(t, bytes, block)
  local at = abi.cast("uint8_t *", t.data)
  local seed, pattern = 88172645, math.min(bytes, math.ceil(MB / block) * block)
  for i = 0, pattern - 1 do
    seed = bit.bxor(seed, bit.lshift(seed, 13))
    seed = bit.bxor(seed, bit.rshift(seed, 17))
    seed = bit.bxor(seed, bit.lshift(seed, 5))
    at[i] = bit.band(bit.rshift(seed, 11), 0xbf)
  end
  if t.dtype == C.PL_NVFP4 then -- one float a tensor, in each block
    for i = 0, pattern - block, block do abi.fill(at + i, 4, 0x3b) end
  end
  for from = pattern, bytes - 1, pattern do abi.copy(at + from, at, math.min(pattern, bytes - from)) end
end

local function floats(shape)
  local t = tensor.empty(shape)
  local at = abi.cast("float *", t.data)
  for i = 0, t:count() - 1 do at[i] = (i % 37 - 18) * 0.125 end
  return t
end

local function packed(d, format, n, k)
  local w, out = tensor.empty({ n, k }, format), tensor.handle()
  local block, bytes = C.pl_dtype_block(w.dtype), C.pl_dtype_bytes(w.dtype)
  fill(w, n * k / block * bytes, bytes)
  check(C.pl_dev_pack(d.ptr, out, w, nil, e))
  w:close()
  return out
end

local function packed_bytes(format, n, k)
  return tonumber(C.pl_dev_packed_bytes(C.PL_DEV_CPU, abi.dtype[format], n, k))
end

-- A sequence of `depth` tokens, the last n of them the running step, in enough layers to lie beyond the caches.
local function filled_cache(d, c, n)
  local o, out, seq, span = abi.new "pl_kv_opts", abi.new "pl_kv *[1]", abi.new "int32_t[1]", abi.new "pl_span[1]"
  o.layers, o.heads, o.key_dim, o.value_dim, o.n_pages = c.layers, c.kv_heads, c.dim, c.dim, c.depth / 64 + 1
  o.dtype, o.scale = abi.dtype[c.dtype], c.scale
  check(C.pl_kv_open(out, d.ptr, o, e))
  local kv, ones = abi.gc(out[0], C.pl_kv_close), abi.array("float", c.kv_heads)
  for i = 0, c.kv_heads - 1 do ones[i] = 1 / 64 end
  for layer = 0, c.scale == C.PL_SCALE_TENSOR and c.layers - 1 or -1 do
    check(C.pl_kv_set_scales(kv, layer, ones, ones, e))
  end
  check(C.pl_kv_seq_new(kv, 0, seq, e))
  span[0].seq = seq[0]
  local rows = floats { CHUNK, c.kv_heads, c.dim }
  local done = 0
  while done < c.depth do
    local left = c.depth - done
    span[0].n = math.min(CHUNK, left > n and left - n or n)
    check(C.pl_kv_begin(kv, span, 1, e))
    local x = rows:slice(1, 0, span[0].n)
    for layer = 0, c.layers - 1 do check(C.pl_kv_append(d.stream, kv, layer, x, x, e)) end
    done = done + span[0].n
    if done < c.depth then check(C.pl_kv_commit(kv, e)) end
  end
  rows:close()
  return kv, function() C.pl_kv_close(abi.gc(kv, nil)) end
end

-- Kernels ------------------------------------------------------------------------------------------------------
-- Each gives cases: a table of kernel, format, act, rows (as the rows that are printed have them), bytes and ops of a
-- call, and make(dev), which returns the call and what gives its memory back.

local kernels = {}

--- Products beyond the cache; from 17 rows on on a part of them, as they take as long as the weights are large.
function kernels.linear(o, add)
  for _, format in ipairs(o.format or M.formats) do
    for _, act in ipairs(o.act or { "bf16" }) do
      for _, m in ipairs(o.rows or { 1, 2, 4, 8, 16, 512 }) do
        local one = packed_bytes(format, 16, K)
        local n = math.max(1, math.floor(o.bytes / one)) * 16
        if m > 16 then n = math.min(n, K) end
        add { kernel = "linear", format = format, act = act, rows = m, shape = ("%dx%d"):format(n, K),
          bytes = packed_bytes(format, n, K), ops = 2 * n * K * m, make = function(d)
            local w, x, y = packed(d, format, n, K), floats { m, K }, tensor.empty { m, n }
            local number = abi.act[act]
            return function() check(C.pl_linear(d.stream, y, x, w, nil, number, e)) end, function()
              w:close() x:close() y:close()
            end
          end }
      end
    end
  end
end

--- The 210 products of SmolLM2-135M's layers in order: what small ones cost, and the joins of threads between them.
function kernels.layers(o, add)
  local shapes = { { 576, 576 }, { 192, 576 }, { 192, 576 }, { 576, 576 }, { 1536, 576 }, { 1536, 576 }, { 576, 1536 } }
  for _, format in ipairs(o.format or { "q4_0", "q8_0", "bf16" }) do
    local fits = 576 % C.pl_dtype_block(abi.dtype[format]) == 0
    for _, act in ipairs(fits and (o.act or { "bf16" }) or {}) do
      for _, m in ipairs(o.rows or { 1, 8 }) do
        local bytes, ops = 0, 0
        for _, s in ipairs(shapes) do
          bytes, ops = bytes + 30 * packed_bytes(format, s[1], s[2]), ops + 30 * 2 * s[1] * s[2] * m
        end
        add { kernel = "layers", format = format, act = act, rows = m, shape = "210 of SmolLM2", bytes = bytes,
          ops = ops, make = function(d)
            local x, y, w = floats { m, 1536 }, tensor.empty { m, 1536 }, {}
            local calls, number = {}, abi.act[act]
            for i = 1, 30 * #shapes do
              local s = shapes[(i - 1) % #shapes + 1]
              w[i] = packed(d, format, s[1], s[2])
              calls[i] = { y:slice(2, 0, s[1]), x:slice(2, 0, s[2]), w[i] }
            end
            return function()
              for i = 1, #calls do
                local c = calls[i]
                check(C.pl_linear(d.stream, c[1], c[2], c[3], nil, number, e))
              end
            end, function()
              for i = 1, #w do calls[i][1]:close() calls[i][2]:close() w[i]:close() end
              x:close() y:close()
            end
          end }
      end
    end
  end
end

local caches = { { "bf16", "bf16", C.PL_SCALE_NONE }, { "fp8", "f8", C.PL_SCALE_TENSOR },
  { "fp8/token", "f8", C.PL_SCALE_TOKEN } }

--- A query of each head over DEPTH tokens in several layers (1 row), and the last 512 tokens of a prompt of as many.
function kernels.attend(o, add)
  for _, heads in ipairs { { 8, 8, 128 }, { 32, 8, 128 }, { 64, 8, 128 }, { 9, 3, 64 } } do
    for _, f in ipairs(caches) do
      for _, n in ipairs(o.rows or { 1, PREFILL }) do
        local h, g, dim = unpack(heads)
        local wanted = not o.format
        for _, name in ipairs(o.format or {}) do wanted = wanted or name == f[1] end
        local token = 2 * g * dim * C.pl_dtype_bytes(abi.dtype[f[2]]) + (f[3] == C.PL_SCALE_TOKEN and 8 * g or 0)
        local layers = n == 1 and math.max(1, math.ceil(o.bytes / (token * DEPTH))) or 1
        local pairs_seen = n * DEPTH - n * (n - 1) / 2
        if wanted and n <= DEPTH then
          add { kernel = "attend", format = f[1], act = "bf16", rows = n, shape = ("%d/%d of %d, depth %d"):format(h, g,
            dim, DEPTH), heads = h, kv_heads = g, head_dim = dim, depth = DEPTH, bytes = layers * token * DEPTH,
            ops = layers * pairs_seen * h * dim * 4, make = function(d)
              local kv, close = filled_cache(d, { layers = layers, kv_heads = g, dim = dim, depth = DEPTH,
                dtype = f[2], scale = f[3] }, n)
              local q, y = floats { n, h, dim }, tensor.empty { n, h, dim }
              return function()
                for layer = 0, layers - 1 do check(C.pl_attend(d.stream, y, q, kv, layer, dim ^ -0.5, 0, e)) end
              end, function()
                C.pl_kv_abort(kv)
                close() q:close() y:close()
              end
            end }
        end
      end
    end
  end
end

-- Ops on activations, which the caches hold as they do in a model; bytes are what is read and written.
local function plain(name, row_bytes, shape, make)
  kernels[name] = function(o, add)
    for _, n in ipairs(o.rows or { 1, PREFILL }) do
      add { kernel = name, format = "f32", rows = n, shape = shape, bytes = n * row_bytes, make = function(d)
        local list = {}
        local function keep(t)
          list[#list + 1] = t
          return t
        end
        return make(d, n, keep), function() for _, t in ipairs(list) do t:close() end end
      end }
    end
  end
end

plain("rms_norm", 2 * 4 * K, tostring(K), function(d, n, keep)
  local x, w, y = keep(floats { n, K }), keep(floats { K }), keep(tensor.empty { n, K })
  return function() check(C.pl_rms_norm(d.stream, y, x, w, 1e-5, e)) end
end)
plain("rope", 2 * 4 * 32 * 128, "32 of 128", function(d, n, keep)
  local x, y, pos = keep(floats { n, 32, 128 }), keep(tensor.empty { n, 32, 128 }), keep(tensor.zeros({ n }, "i32"))
  local freq, list, at = keep(tensor.empty { 64 }), {}, {}
  for i = 1, 64 do list[i] = 1e4 ^ (-(i - 1) / 64) end
  for i = 1, n do at[i] = 1000 + i end
  tensor.set(freq, list)
  tensor.set(pos, at)
  return function() check(C.pl_rope(d.stream, y, x, pos, freq, 1, 0, e)) end
end)
plain("swiglu", 3 * 4 * 14336, "14336", function(d, n, keep)
  local g, u, y = keep(floats { n, 14336 }), keep(floats { n, 14336 }), keep(tensor.empty { n, 14336 })
  return function() check(C.pl_swiglu(d.stream, y, g, u, e)) end
end)

--- Rows of a packed table chosen at random; bytes: codes read and floats written.
function kernels.embed(o, add)
  for _, format in ipairs(o.format or { "bf16", "q4_0", "q6_k", "q8_0" }) do
    for _, n in ipairs(o.rows or { 1, PREFILL }) do
      local v = math.max(1, math.floor(o.bytes / packed_bytes(format, 16, K))) * 16
      add { kernel = "embed", format = format, rows = n, shape = ("%dx%d"):format(v, K),
        bytes = n * (packed_bytes(format, 16, K) / 16 + 4 * K), make = function(d)
          local w, y, ids, list = packed(d, format, v, K), tensor.empty { n, K }, tensor.zeros({ n }, "i32"), {}
          for i = 1, n do list[i] = i * 7919 % v end
          tensor.set(ids, list)
          return function() check(C.pl_embed(d.stream, y, w, ids, 1, e)) end, function()
            w:close() y:close() ids:close()
          end
        end }
    end
  end
end

--- One token of VOCAB logits; it is one thread's work.
function kernels.sample(o, add)
  local ways = { { "greedy", temperature = 0, top_p = 1 }, { "temperature", temperature = 1, top_p = 1 },
    { "top-p 0.9", temperature = 1, top_p = 0.9 }, { "top-k 50", temperature = 1, top_p = 1, top_k = 50 },
    { "20 logprobs", temperature = 0, top_p = 1, n_logprobs = 20 } }
  for _, way in ipairs(o.rows and o.rows[1] ~= 1 and {} or ways) do
    add { kernel = "sample", format = "f32", rows = 1, shape = way[1], bytes = 4 * VOCAB, serial = true,
      make = function()
        local logits, scratch = abi.array("float", VOCAB), abi.array("float", VOCAB)
        local opts, out, history = abi.new "pl_sample_opts", abi.new "pl_sampled", abi.array("int32_t", 16)
        opts.temperature, opts.top_p, opts.top_k = way.temperature, way.top_p, way.top_k or 0
        opts.repetition, opts.seed, opts.n_logprobs = 1, 1, way.n_logprobs or -1
        local x = 0.5
        for i = 0, VOCAB - 1 do -- about normal, as logits are: a sum of three that are even
          local sum = 0
          for _ = 1, 3 do
            x = (x * 16807 + 0.1234567) % 1
            sum = sum + x
          end
          logits[i] = (sum - 1.5) * 5
        end
        return function() check(C.pl_sample(out, logits, VOCAB, opts, history, 16, 8, scratch, e)) end, function() end
      end }
  end
end

local order = { "linear", "attend", "rms_norm", "rope", "swiglu", "embed", "sample", "layers" }
--- Kernels by name, in the order in which they are measured.
M.kernels = order

-- Measuring ----------------------------------------------------------------------------------------------------

local function median(list)
  local s = { unpack(list) }
  table.sort(s)
  return (s[math.floor((#s + 1) / 2)] + s[math.ceil((#s + 1) / 2)]) / 2
end
M.median = median

-- Memory for the read probe.
local function read_memory(bytes)
  local t = tensor.empty({ bytes }, "u8")
  abi.fill(t.data, bytes, 1) -- pages that nobody wrote are all the same one
  return t
end

local function clock_of(threads) return threads == 1 and os.clock or C.pl_now_s end

local function probe(d, number, memory, clock)
  local work = abi.new "double[1]"
  return function()
    local t = clock()
    check(C.pl_dev_probe(d.ptr, number, memory, work, e))
    return work[0] / (clock() - t)
  end
end

--- GB/s that all threads of a device read from memory: the median of some runs.
function M.read_gb_s(d)
  local memory = read_memory(M.beyond_cache())
  local run, list = probe(d, C.PL_PROBE_READ, memory, clock_of(d:threads())), {}
  for i = 1, 9 do list[i] = run() / 1e9 end
  memory:close()
  return median(list)
end

-- The probe whose instructions a case's products use, on the path of the device.
local function peak_of(case, path)
  if not case.ops then return end
  local tiles = path == "amx" and case.kernel ~= "attend" and case.format ~= "f16" and case.format ~= "f32"
  if case.act == "int8" or case.act == "int15" then
    return tiles and "TILE_INT8" or path ~= "portable" and "INT8" or nil
  end
  return tiles and case.act == "bf16" and "TILE_BF16" or "FLOAT"
end

local LEAST_S, MAX_ROUNDS = 2e-3, 99 -- a sample is at least so long: clocks and wake-ups are of microseconds

local function measure(case, d, memory, seconds)
  local threads = case.serial and 1 or d:threads()
  local clock = clock_of(d:threads())
  local read = probe(d, C.PL_PROBE_READ, memory, clock)
  local peak_name = peak_of(case, d:path())
  local peak = peak_name and probe(d, C["PL_PROBE_" .. peak_name], nil, clock)
  local call, close = case.make(d)
  call()
  local times = 1
  local function sample()
    local t = clock()
    for _ = 1, times do call() end
    return (clock() - t) / times
  end
  local once = sample()
  times = math.max(1, math.ceil(LEAST_S / math.max(once, 1e-7)))
  local time, gb, read_share, gop, peaks, peak_share = {}, {}, {}, {}, {}, {}
  local begun = C.pl_now_s()
  for i = 1, MAX_ROUNDS do
    if C.pl_host_interrupted(true) then close() err.raise("interrupted", nil, "ECANCEL") end
    gb[i] = read() / 1e9
    if peak then peaks[i] = peak() / 1e9 end
    time[i] = sample()
    read_share[i] = case.bytes / time[i] / 1e9 / gb[i]
    if peak then
      gop[i] = case.ops / time[i] / 1e9
      peak_share[i] = gop[i] / peaks[i]
    end
    if i >= 3 and C.pl_now_s() - begun > seconds then break end
  end
  close()
  local t = median(time)
  return { kernel = case.kernel, format = case.format, act = case.act, path = d:path(), rows = case.rows,
    threads = threads, shape = case.shape, heads = case.heads, kv_heads = case.kv_heads, head_dim = case.head_dim,
    depth = case.depth, us = t * 1e6, bytes = case.bytes, gb_s = case.bytes / t / 1e9, read_gb_s = median(gb),
    read_share = median(read_share), gop_s = peak and median(gop) or nil, peak_gop_s = peak and median(peaks) or nil,
    peak_share = peak and median(peak_share) or nil, peak = peak_name and peak_name:lower() or nil, rounds = #time }
end

local whole = schema.whole
local function list_of(names)
  return function(v)
    if type(v) ~= "table" then return schema.show(v) .. ", want a list" end
    for _, x in ipairs(v) do
      local found = false
      for _, n in ipairs(names) do found = found or n == x end
      if not found then return ("%s, want some of %s"):format(schema.show(x), table.concat(names, " ")) end
    end
  end
end
M.all_formats = { "fp8", "fp8/token", unpack(M.formats) }
local fields = { kernel = list_of(order), format = list_of(M.all_formats), act = list_of(M.acts),
  rows = schema.list(whole(1, 65536)), threads = schema.list(whole(0, 1024)), path = "string", seconds = "number",
  bytes = whole(1, 2 ^ 40), on_start = "function",
  on_row = "function" }

-- What kernels have formats, and which; and what has an act. Others have one of each.
local formats_of = { linear = M.formats, layers = M.formats, embed = M.formats,
  attend = { "bf16", "fp8", "fp8/token" } }
local has_act = { linear = true, layers = true }

-- Of the formats that were asked for, those of a kernel; nil: all that it has.
local function formats(o, name)
  if not o.format then return nil end
  local out = {}
  for _, asked in ipairs(o.format) do
    for _, has in ipairs(formats_of[name] or {}) do if asked == has then out[#out + 1] = asked end end
  end
  return out
end

-- A format or an act that no kernel has which is wanted.
local function check_use(o, wanted)
  local names = err.names(wanted)
  table.sort(names)
  for _, format in ipairs(o.format or {}) do
    local used = false
    for _, name in ipairs(names) do used = used or #formats({ format = { format } }, name) > 0 end
    if not used then err.raise(("format: %s, which is none of %s"):format(format, table.concat(names, ","))) end
  end
  local used = not o.act
  for _, name in ipairs(names) do used = used or has_act[name] end
  if not used then err.raise(("act: %s, but only linear and layers have one"):format(table.concat(o.act, ","))) end
end

--- Measures. o: kernel, format, act, rows, threads (lists; not given: all, or what is usual), path, seconds (of each
--- row, at least 3 rounds), bytes (that weights and caches go through), on_start(figures), on_row(row). Returns {
--- machine, cache_bytes, bytes, rows = { ... } }.
function M.run(o)
  o = schema.check("kernels", fields, o)
  o.bytes = o.bytes or M.beyond_cache()
  local wanted = {}
  for _, name in ipairs(o.kernel or { "linear", "attend", "rms_norm", "rope", "swiglu", "embed", "sample" }) do
    wanted[name] = true
  end
  check_use(o, wanted)
  local f = { cache_bytes = M.cache_bytes(), bytes = o.bytes, rows = {}, machine = M.machine() }
  if o.on_start then o.on_start(f) end
  for _, threads in ipairs(o.threads or { 0 }) do
    local d = dev.set { threads = threads, path = o.path }
    local memory = read_memory(M.beyond_cache())
    for _, name in ipairs(order) do if wanted[name] then
      local own = { format = formats(o, name), act = o.act, rows = o.rows, bytes = o.bytes }
      local one = not formats_of[name] or not own.format or #own.format > 0
      kernels[name](own, function(case)
        if not one then return end
        local row = measure(case, d, memory, o.seconds or 0.5)
        f.rows[#f.rows + 1] = row
        if o.on_row then o.on_row(row) end
      end)
    end end
    memory:close()
    d:close()
  end
  if #f.rows == 0 then err.raise "kernels: what is asked for leaves nothing to measure" end
  return f
end

--- The CPU's name, as the kernel has it.
function M.machine()
  local text = file.read("/proc/cpuinfo", file.text) or ""
  return text:match "model name%s*:%s*([^\n]+)" or "unknown"
end

local function share(x) return x and ("%3.0f%%"):format(x * 100) or "   -" end

--- What a table begins with, its head, and a row of it.
function M.title(f)
  return ("%s, last cache %.0f MB, %.0f MB of weights or of cache a row; read and peak: the machine's, in the same "
    .. "rounds"):format(f.machine, f.cache_bytes / MB, f.bytes / MB)
end
M.head = ("%-9s %-9s %-5s %-8s %4s %7s  %-24s %10s %7s %6s %5s %8s %8s %5s"):format("kernel", "format", "act",
  "path", "rows", "threads", "shape", "us", "GB/s", "read", "", "GOP/s", "peak", "")
function M.line(r)
  return ("%-9s %-9s %-5s %-8s %4d %7d  %-24s %10.1f %7.2f %6.1f %5s %8s %8s %5s"):format(r.kernel, r.format,
    r.act or "-", r.path, r.rows, r.threads, r.shape, r.us, r.gb_s, r.read_gb_s, share(r.read_share),
    r.gop_s and ("%.1f"):format(r.gop_s) or "-", r.peak_gop_s and ("%.1f"):format(r.peak_gop_s) or "-",
    share(r.peak_share))
end

return M
