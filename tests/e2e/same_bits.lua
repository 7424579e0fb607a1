-- The same request alone and among 15 others, with 1, 2 and 3 threads, on every path that the machine has: the same
-- logits, bit for bit. A counter per path shows which one ran, and asking for a path that the machine lacks is an
-- error.
local abi, model = require "pl.abi", require "pl.model"
local C, check = abi.C, abi.check

local N = 16 -- requests
local tiny = "tests/data/tiny-llama"
local smollm2 = (os.getenv "XDG_CACHE_HOME"
  or os.getenv "HOME" .. "/.cache") .. "/perilune/SmolLM2-135M-Instruct.Q4_1.gguf"
local passed, failed = 0, 0
local function verdict(ok, fmt, ...)
  if ok then passed = passed + 1 else failed = failed + 1 end
  print((ok and "ok   " or "FAIL ") .. fmt:format(...))
end

local function exists(path)
  local f = io.open(path)
  if f then f:close() end
  return f ~= nil
end

-- Request i: unequal lengths, some over several pages, so that spans start anywhere in the batch.
local function prompt(i, vocab, longest)
  local ids = {}
  for k = 1, 1 + (i * 29) % longest do ids[k] = (i * 101 + k * 37) % vocab end
  return ids
end

-- Logits of the last row of each list of ids, all in one step, as strings of bytes.
local function logits(m, lists)
  local spans, batch, result = abi.new("pl_span[?]", #lists), abi.new "pl_batch", abi.new "pl_tensor[1]"
  local rows, all, seq = abi.new("int32_t[?]", #lists), {}, abi.new "int32_t[1]"
  for i, ids in ipairs(lists) do
    check(C.pl_kv_seq_new(m.engine.kv, 0, seq, abi.err))
    spans[i - 1].seq, spans[i - 1].n = seq[0], #ids
    for _, id in ipairs(ids) do all[#all + 1] = id end
    rows[i - 1] = #all - 1
  end
  local ids = abi.array("int32_t", all)
  batch.ids, batch.rows, batch.span = ids, rows, spans
  batch.n_tokens, batch.n_rows, batch.n_spans = #all, #lists, #lists
  assert(check(C.pl_prog_run(m.prog.ptr, m.engine.kv, batch, result, abi.err)))
  local out, V = {}, m.trace.vocab
  for i = 1, #lists do
    out[i] = abi.string(abi.cast("char *", abi.cast("float *",
      result[0].data) + (i - 1) * tonumber(result[0].stride[0])), V * 4)
    C.pl_kv_seq_free(m.engine.kv, spans[i - 1].seq)
  end
  return out
end

local names = { "portable", "avx2", "avx512", "amx", "soft-amx" }
-- Tiles multiply BF16 and integers: with float activations those paths run the fma kernels of the same machine, as they
-- do with weights that have no integers, and AMX with few tokens.
local float_path = { amx = "avx512", ["soft-amx"] = "avx2" }

local function run(path_of_model, act, longest, skip)
  local want
  for _, path in ipairs(names) do
    if not C.pl_dev_has_path(abi.path[path]) then
      local ok, e = pcall(model.load, path_of_model, { path = path, threads = 1 })
      verdict(not ok and tostring(e):find(path, 1, true), "%s: a machine without it says so: %s", path,
        tostring(e):match "[^\n]*")
    elseif not skip[path] then
      for _, threads in ipairs { 1, 2, 3 } do
        local m = model.load(path_of_model, { path = path, threads = threads, act = act, batch = N, tokens = 512,
          context = 128 })
        local lists = {}
        for i = 1, N do lists[i] = prompt(i, m.trace.vocab, longest) end
        local together, alone = logits(m, lists), {}
        for i = 1, N do alone[i] = logits(m, { lists[i] })[1] end
        want = want or alone
        local same, first = true, nil
        for i = 1, N do
          if together[i] ~= want[i] or alone[i] ~= want[i] then same, first = false, first or i end
        end
        local counts = m.dev:counts()
        local ran, others = act == "f32" and float_path[path] or path, 0
        local too = float_path[path] -- formats that are not of integers, and a single row where tiles take more
        for name, n in pairs(counts) do if name ~= ran and name ~= too then others = others + n end end
        local few = act ~= "bf16" or not too or counts[too] < counts[ran] -- single rows are the lesser part
        verdict(same and counts[ran] > 0 and others == 0 and few, "%s act %s, %s, %d threads: %d products on %s%s",
          path_of_model:match "[^/]+$", act,
          path, threads, counts[ran], ran, same and "" or ", other bits from request " .. first .. " on")
        local dev = m.dev
        m:close()
        dev:close()
      end
    end
  end
end

local have = {}
for _, path in ipairs(names) do have[#have + 1] = path .. (C.pl_dev_has_path(abi.path[path]) and ""
  or " (not on this machine)") end
print("paths: " .. table.concat(have, ", "))
run(tiny, "bf16", 31, {})
run(tiny, "f32", 31, {})
run("tests/data/tiny-llama-gguf/model.gguf", "int8", 31, {})
run("tests/data/tiny-llama-gguf/model.gguf", "int15", 31, {})
if (os.getenv "PL_SANITIZED" or "") ~= "" then
  print "skip SmolLM2: a sanitizer build"
elseif exists(smollm2) then
  run(smollm2, "bf16", 9, { portable = true, ["soft-amx"] = true }) -- minutes in plain C: the tiny model has those
else
  print "skip SmolLM2: no model file"
end
print(("%d passed, %d failed"):format(passed, failed))
os.exit(failed == 0 and 0 or 1)
