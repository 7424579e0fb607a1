-- luacheck: no max line length
-- models.lua [N [SEED]]: damages the small models in N ways (1000) and does with each what a user would: load, plan,
-- generate, score, tokenise. Each ends well or with perilune's own error of one line that says what was wrong: no crash,
-- no report of a sanitizer, no Lua error, nothing slow. Run it with the pl-lua of an ASan build; one case goes on as
-- models.lua 1 SEED. Unlike the fuzzers it sees all that stands between a file and a token, Lua included.
local model, err, abi = require "pl.model", require "pl.err", require "pl.abi"
local count, first = tonumber(arg[1]) or 1000, tonumber(arg[2]) or 1
local verbose = os.getenv "PL_VERBOSE"
local dir = os.tmpname()
os.remove(dir)
os.execute("mkdir " .. dir)

local files = dofile "tests/files.lua"
local read, write = files.read, files.write

-- Random numbers of our own, so that a seed means the same case everywhere.
local state
local function random(n) -- 1..n
  state = (state * 48271) % 2147483647
  return math.floor(state / 2147483647 * n) + 1
end
local function pick(list) return list[random(#list)] end
local function flip(odds) return random(odds) == 1 end

local function le(v, bytes)
  local s = {}
  for i = 1, bytes do
    s[i] = string.char(v % 256)
    v = math.floor(v / 256)
  end
  return table.concat(s)
end
local function number_at(s, at, bytes)
  local v = 0
  for i = bytes, 1, -1 do v = v * 256 + s:byte(at + i - 1) end
  return v
end
local function put(s, at, what) return s:sub(1, at - 1) .. what .. s:sub(at + #what) end

-- JSON: one of its values in place of another ---------------------------------------------------------------
local evil = { "0", "1", "-1", "2", "3", "7", "33", "64", "1023", "1025", "65536", "2147483647", "2147483648", "4294967296", "1e15",
  "9007199254740993", "9223372036854775807", "-9223372036854775808", "1e300", "1e999", "-0.0", "0.5", "1e-300", "NaN", "true",
  "false", "null", '""', '"x"', '"llama"', '"default"', '"yarn"', '"linear"', '"llama3"', '"F32"', '"BF16"', '"F16"', '"I64"',
  '"F8_E4M3"', '"U8"', '"\\u0000"', '"\\ud800"', '"../../etc/passwd"', '"/dev/zero"', "[]", "{}", "[1]", "[1,2]", "[0,0]", "[[]]",
  '["a"]', '{"a":1}', "[1,-1]", "[9223372036854775807,2]", "[4294967296,4294967296]", "[0,18446744073709551615]", "[-1,5]" }

-- Values as they stand, scalars and flat lists: from, to.
local function values(s)
  local list, at = {}, 1
  while true do
    at = s:match('^[%s,:{}%[%]]*()', at)
    if at > #s then return list end
    local from, to = at
    local c = s:sub(at, at)
    if c == '"' then
      local stop = at + 1
      while stop <= #s and s:sub(stop, stop) ~= '"' do stop = stop + (s:sub(stop, stop) == "\\" and 2 or 1) end
      to = stop
    else
      to = select(2, s:find("^[^,:{}%[%]%s]+", at))
    end
    if not to then return list end
    if flip(4) and s:sub(from - 1, from - 1) == "[" then to = s:find("]", to, true) or to from = from - 1 end
    if not s:find("^%s*:", to + 1) or flip(50) then list[#list + 1] = { from, to } end -- a key seldom
    at = to + 1
  end
end

local function damage_json(s)
  for _ = 1, pick { 1, 1, 1, 2, 3 } do
    local what = random(20)
    if what == 1 then -- cut
      s = s:sub(1, random(#s))
    elseif what == 2 then -- bytes
      s = put(s, random(#s), string.char(random(256) - 1))
    elseif what == 3 then -- a piece twice, or away
      local a, n = random(#s), random(200)
      s = s:sub(1, a) .. (flip(2) and s:sub(a - n, a) or "") .. s:sub(a + (flip(2) and 1 or n))
    else
      local from = #s > 20000 and random(#s - 10000) or 1 -- a large file in parts
      local part = s:sub(from, from + 10000)
      local list = values(part)
      if #list > 0 then
        local v = pick(list)
        local a, b = from + v[1] - 1, from + v[2] - 1
        local new = what < 6 and list[1] and (function() local o = pick(list) return part:sub(o[1], o[2]) end)() or pick(evil)
        s = s:sub(1, a - 1) .. new .. s:sub(b + 1)
      end
    end
    if #s == 0 then s = " " end
  end
  return s
end

-- Weights: values that are no numbers, or large ones.
local function damage_data(s, from)
  if from > #s then return s end
  for _ = 1, random(20) do
    local at = from + (random(math.max(1, #s - from - 4)) - 1)
    s = put(s, at, pick { "\255\255", "\128\127", "\192\127", "\0\0\128\127", "\0\0\128\255", "\127\127\127\127", "\255\127", "\0\124" })
  end
  return s
end

local function damage_safetensors(s)
  local n = number_at(s, 1, 8)
  local what = random(10)
  if what == 1 then return le(pick { 0, 1, 7, n - 1, n + 1, n * 2, #s - 8, #s, 2 ^ 31, 2 ^ 40, 2 ^ 52 }, 8) .. s:sub(9) end
  if what == 2 then return s:sub(1, pick { 0, 1, 7, 8, 9, n, n + 7, n + 8, #s - 1, random(#s) }) end
  if what == 3 then return damage_data(s, n + 9) end
  local head = damage_json(s:sub(9, 8 + n))
  return le(#head, 8) .. head .. s:sub(9 + n)
end

-- GGUF: a number of the head in place of another.
local function damage_gguf(s)
  local head = math.min(#s, (s:find "tokenizer%.ggml" or 3000) + (flip(2) and 0 or 20000))
  for _ = 1, pick { 1, 1, 2, 4 } do
    local what = random(10)
    if what == 1 then
      s = s:sub(1, random(flip(2) and head or #s))
    elseif what == 2 then
      s = damage_data(s, #s - random(math.floor(#s / 2)))
    elseif what == 3 then
      s = put(s, random(head), string.char(random(256) - 1))
    elseif what < 8 then -- the value behind a key: u32 type, value
      local keys = {}
      for at in s:sub(1, head):gmatch "[%w_]+%.[%w_.]+()" do keys[#keys + 1] = at end
      for at in s:gmatch "[%w_]+%.weight()" do keys[#keys + 1] = at end
      for at in s:gmatch "[%w_]+%.bias()" do keys[#keys + 1] = at end
      local at = #keys > 0 and pick(keys) or random(head)
      local v = pick { 0, 1, 2, 3, 5, 31, 64, 255, 1025, 65535, 2 ^ 31 - 1, 2 ^ 31, 2 ^ 32 - 1, 0x7fc00000, 0x7f800000 }
      local to = at + 4 * (random(6) - 1) -- type; value; dims, format, offset
      if to + 4 <= #s then s = put(s, to, le(v, 4)) end
    else
      local at = random(math.min(head, #s))
      local bytes = pick { 4, 8 }
      if at + bytes <= #s then s = put(s, at, le(pick { 0, 1, 2 ^ 31, 2 ^ 32 - 1, 2 ^ 52, 12, #s }, bytes)) end
    end
    if #s < 16 then break end
  end
  return s
end

local function damage(name, s)
  if name:find "%.safetensors$" then return damage_safetensors(s) end
  if name:find "%.gguf$" then return damage_gguf(s) end
  return damage_json(s)
end

-- The models ------------------------------------------------------------------------------------------------
local models = {}
for _, name in ipairs { "tiny-llama3", "tiny-qwen2", "tiny-qwen3", "tiny-gemma3", "tiny-llama-linear", "tiny-llama-yarn",
  "tiny-llama-gguf", "tiny-qwen2-gguf", "tiny-qwen3-gguf" } do
  local m = { name = name, files = {}, path = dir .. "/" .. name }
  os.execute("mkdir " .. m.path)
  local p = io.popen("ls tests/data/" .. name)
  for file in p:lines() do
    m.files[#m.files + 1] = { name = file, text = read("tests/data/" .. name .. "/" .. file) }
    write(m.path .. "/" .. file, m.files[#m.files].text)
    if file:find "%.gguf$" then m.open = m.path .. "/" .. file end
  end
  p:close()
  m.open = m.open or m.path
  models[#models + 1] = m
end

local function use(path, o)
  local m = model.open(path, o)
  local ok, e = pcall(function()
    m:plan()
    m:start(32)
    m:generate { prompt = { 1, 2, 3 }, max_tokens = 3, temperature = flip(2) and 1 or 0 }
    m:score({ 1, 2, 3, 4, 5 }, 3)
    local tok = m:tokenizer()
    tok:decode(tok:encode("Ein Wort, 12 words\n\tand\0 \255 <s>", { specials = flip(2), bos = true }))
    m:generate { prompt = "a b", max_tokens = 2, stream = function() end }
  end)
  m:close()
  if not ok then error(e, 0) end
end

local fine, refused, failed, slowest = 0, 0, 0, 0
for seed = first, first + count - 1 do
  state = seed * 69621 % 2147483647 + 1
  for _ = 1, 10 do random(2) end
  local m = pick(models)
  local file = pick(m.files)
  if flip(2) then file = m.files[1] end -- config.json, or the GGUF file
  local text = damage(file.name, file.text)
  write(m.path .. "/" .. file.name, text)
  local case = ("seed %d: %s/%s"):format(seed, m.name, file.name)
  if verbose then io.stderr:write(case, "\n") end
  local o = { act = pick { "f32", "bf16" }, kv = flip(3) and "f32" or nil, batch = pick { 1, 3 }, tokens = pick { 1, 16 },
    threads = pick { 1, 2, 3 } }
  local at = abi.C.pl_now_s()
  local ok, e = pcall(use, m.open, o)
  local took = abi.C.pl_now_s() - at
  local said = tostring(e)
  slowest = math.max(slowest, took)
  if ok then fine = fine + 1 else refused = refused + 1 end
  local bad = not ok and (not err.is(e) and "no error object" or said:find "attempt to" and "a Lua error"
    or said:find "bad argument" and "a Lua error" or select(2, said:gsub("\n", "")) > 8 and "a long error"
    or said:find "[%z\1-\8\11-\31\127]" and "control bytes") or took > 20 and ("took %.1f s"):format(took)
  if bad then
    failed = failed + 1
    print(("FAIL %s: %s: %s"):format(case, bad, ok and "" or ("%q"):format(said:sub(1, 400))))
  elseif verbose then
    io.stderr:write("  ", ok and "fine" or said:sub(1, 300), "\n")
  end
  write(m.path .. "/" .. file.name, file.text)
end
os.execute("rm -r " .. dir)
print(("%d cases: %d run, %d refused, the slowest took %.1f s"):format(count, fine, refused, slowest))
print(("%d passed, %d failed"):format(count - failed, failed))
os.exit(failed == 0 and 0 or 1)
