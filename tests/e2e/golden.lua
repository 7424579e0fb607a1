-- Logits and greedy texts against a reference implementation's (float32, eager), through the command line. Bounds are
-- differences of log-probability over the reference's 20 best tokens, of the mean nll, and greedy tokens up to the
-- first step whose reference margin is too small to decide. Where a model or ../shared is missing, says so.
local cjson = require "cjson"

local perilune = (os.getenv "PL_BUILD" or "build") .. "/perilune"
local cache = (os.getenv "XDG_CACHE_HOME" or os.getenv "HOME" .. "/.cache") .. "/perilune/"

local function exists(path)
  local f = io.open(path)
  if f then f:close() end
  return f ~= nil
end
local shared = exists "../shared/golden/README.md"
-- too slow for real models: the tiny ones run the same code
local sanitized = (os.getenv "PL_SANITIZED" or "") ~= ""

-- real: bounds of the real models; own: the golden is in this repository too, random: the model has random weights
-- (tests/golden/make_tiny.py), its golden is only here
local models = {
  { name = "tiny-llama", path = "tests/data/tiny-llama", golden = "tests/golden/tiny-llama/logits.jsonl", own = true },
  { name = "smollm2-135m-instruct-q4_1", path = cache .. "SmolLM2-135M-Instruct.Q4_1.gguf", real = true },
  { name = "gemma3-270m-q4_k_m", path = cache .. "gemma-3-270m-q4_k_m.gguf", real = true },
  { name = "qwen2.5-coder-0.5b-q4_k_m", path = cache .. "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", real = true },
}
for _, name in ipairs { "tiny-qwen2", "tiny-qwen3", "tiny-gemma3", "tiny-llama3", "tiny-llama-linear",
  "tiny-llama-yarn",
  "tiny-llama-gguf", "tiny-qwen2-gguf", "tiny-qwen3-gguf" } do
  models[#models + 1] = { name = name, path = "tests/data/" .. name .. (name:match "gguf$" and "/model.gguf" or ""),
    golden = ("tests/golden/%s/logits.jsonl"):format(name), own = true, random = true }
end
local bounds = {
  f32 = { real = { max = 0.001, mean = 0.001, nll = 0.0002 }, tiny = { max = 0.0005, mean = 0.0005, nll = 0.0002 },
    margin = 0.005 },
  bf16 = { real = { max = 0.20, mean = 0.035, nll = 0.03 }, tiny = { max = 0.03, mean = 0.004, nll = 0.006 },
    margin = 0.2 },
}
bounds.int8 = { real = { max = 0.7, mean = 0.15, nll = 0.06 }, tiny = { max = 0.06, mean = 0.012, nll = 0.012 },
  margin = 0.5 }
bounds.int15 = { real = { max = 0.01, mean = 0.01, nll = 0.002 }, tiny = { max = 0.005, mean = 0.005, nll = 0.002 },
  margin = 0.05 }
bounds.f32.random = { max = 0.0002, mean = 0.0001, nll = 0.0001 }
bounds.bf16.random = { max = 0.20, mean = 0.06, nll = 0.04 }
bounds.int15.random, bounds.int8.random = bounds.int15.tiny, bounds.int8.real
local function class(m)
  return m.real and "real" or m.random and "random" or "tiny"
end

local function call(args)
  local p = assert(io.popen(perilune .. " " .. args))
  local text = p:read "*a"
  p:close()
  local ok, value = pcall(cjson.decode, text)
  assert(ok, "no JSON from: " .. args .. "\n" .. text)
  return value
end

local n_ok, n_bad, n_skipped = 0, 0, 0
local function verdict(ok, fmt, ...)
  if ok then n_ok = n_ok + 1 else n_bad = n_bad + 1 end
  print((ok and "ok   " or "FAIL ") .. fmt:format(...))
end

-- the cache is as exact as the activations
local function with_cache(act) return act == "int15" and "int15 --kv f32" or act end

local function check_scores(m, g, act, b)
  local ids = table.concat(g.ids, ",")
  local got = call(("score '%s' --ids %s --top 300 --act %s --json"):format(m.path, ids, with_cache(act)))
  local mine, max, sum, missing = {}, 0, 0, 0
  for _, t in ipairs(got.top) do mine[t[1]] = t[2] end
  for _, t in ipairs(g.top) do
    local logit = mine[t[1]]
    if logit then
      local d = math.abs((logit - got.logsumexp) - (t[2] - g.lse))
      max, sum = math.max(max, d), sum + d
    else
      missing = missing + 1
    end
  end
  local mean, nll = sum / #g.top, g.nll_mean ~= cjson.null and math.abs(got.nll - g.nll_mean) or 0
  verdict(missing == 0 and max <= b.max and mean <= b.mean and nll <= b.nll,
    "%s %s %s: log-probability max %.5f mean %.5f nll %.5f",
    m.name, g.id, act, max, mean, nll)
end

local function check_greedy(m, g, act, margin)
  local ids = table.concat(g.ids, ",")
  local got = call(("run '%s' --ids %s --max-tokens %d --ignore-eos --temperature 0 --act %s --json"):format(m.path,
    ids,
    #g.greedy.ids, with_cache(act)))
  local upto = #g.greedy.ids
  for i, gap in ipairs(g.greedy.margin) do
    if gap < margin then upto = i - 1 break end
  end
  for _, at in ipairs(g.greedy.cache_disagrees_at or {}) do upto = math.min(upto, at) end
  local same = true
  for i = 1, upto do same = same and got.tokens[i] == g.greedy.ids[i] end
  verdict(same and #got.tokens == #g.greedy.ids, "%s %s %s: greedy tokens, %d of %d decided", m.name, g.id, act, upto,
    #g.greedy.ids)
end

for _, m in ipairs(models) do
  local golden = shared and not m.random and ("../shared/golden/%s/logits.jsonl"):format(m.name) or m.golden
  if sanitized and m.real then
    print(("skip %s: a sanitizer build"):format(m.name))
    n_skipped = n_skipped + 1
  elseif not golden or not exists(golden)
    or not exists(m.path:match "%.gguf$" and m.path or m.path .. "/config.json") then
    print(("skip %s: %s"):format(m.name, (not golden or not exists(golden)) and "no golden (../shared is not there)"
      or "no model file"))
    n_skipped = n_skipped + 1
  else
    local n = 0
    for line in io.lines(golden) do
      local g = cjson.decode(line)
      n = n + 1
      if sanitized and n > 2 then break end
      -- real models: integer activations with the first two texts, for time
      -- int8 is bf16 and int15 f32 for weights whose codes are no integers: those that have such are GGUF files
      local integers = m.path:match "%.gguf$" and (n <= 2 or not m.real)
      for _, act in ipairs(integers and { "f32", "bf16", "int8", "int15" } or { "f32", "bf16" }) do
        check_scores(m, g, act, bounds[act][class(m)])
        check_greedy(m, g, act, bounds[act].margin)
      end
    end
  end
end
print(("%d models skipped"):format(n_skipped))
local least = sanitized and 104 or 216 + (shared and 100 or 28) -- 216, 96: those of the random models
if n_ok + n_bad < least then
  print(("FAIL only %d golden checks ran, want at least %d"):format(n_ok + n_bad, least))
  n_bad = n_bad + 1
end
print(("%d passed, %d failed"):format(n_ok, n_bad))
os.exit(n_bad == 0 and 0 or 1)
