-- A request's tokens and log-probabilities do not depend on what runs beside it, on the number of threads, or
-- on the code path: the same bits alone and among fifteen others, on every path that the machine has. A
-- counter per path proves which one ran; asking for one that the machine lacks is an error.
local abi = require "pl.abi"
local model = require "pl.model"
local C = abi.C
local verdicts = dofile "tests/verdicts.lua"
local verdict = verdicts.ok

local prompts = {}
for i = 1, 16 do
  prompts[i] = {}
  for k = 1, 1 + (i * 7) % 23 do prompts[i][k] = (i * 37 + k * 11) % 1000 + 3 end
end
local function ask(m, i)
  return m:submit { ids = prompts[i], max_tokens = 12, ignore_eos = true, temperature = i % 3 == 0 and 1
    or 0, seed = i, logprobs = 5 }
end
local function print_of(r)
  local out = { table.concat(r.ids, " ") }
  for _, l in ipairs(r.logprobs) do
    out[#out + 1] = ("%.9g"):format(l.logprob)
    for _, t in ipairs(l.top) do out[#out + 1] = ("%d:%.9g"):format(t[1], t[2]) end
  end
  return table.concat(out, " ")
end

local paths, lacking = {}, {}
for name, i in pairs(abi.path) do
  if name ~= "auto" then
    if C.pl_dev_has_path(i) then paths[#paths + 1] = name else lacking[#lacking + 1] = name end
  end
end
table.sort(paths)
table.sort(lacking)
print("paths: " .. table.concat(paths, " ") .. "; not on this machine: " .. (#lacking > 0
  and table.concat(lacking, " ") or "none"))
for _, name in ipairs(lacking) do
  local ok, e = pcall(model.load, "tests/data/tiny-llama", { path = name })
  verdict(not ok and tostring(e):find(name, 1, true), ("path %s: %s"):format(name, tostring(e)))
end

for _, act in ipairs { "bf16", "f32" } do
  local want = {}
  for _, path in ipairs(paths) do
    for threads = 1, 2 do
      local what = ("%s, %s, %d threads"):format(act, path, threads)
      local before
      local m = model.load("tests/data/tiny-llama", { act = act, path = path, threads = threads, batch = 16,
        tokens = 48, context = 64 })
      before = m.dev:counts()
      -- alone
      for _, i in ipairs { 1, 3, 8 } do
        local r = ask(m, i)
        while not r.finish do m:step() end
        local text = print_of(r)
        want[i] = want[i] or text
        verdict(text == want[i], ("%s: request %d alone\n  %s\n  %s"):format(what, i, text, want[i]))
      end
      -- among fifteen others, which come while it runs
      local all = {}
      for i = 1, 9 do all[i] = ask(m, i) end
      m:step()
      m:step()
      for i = 10, 16 do all[i] = ask(m, i) end
      local guard = 0
      while m:step() > 0 do
        guard = guard + 1
        assert(guard < 1000, "the engine does not come to an end")
      end
      for i = 1, 16 do
        local text = print_of(all[i])
        want[i] = want[i] or text
        verdict(#all[i].ids == 12 and text == want[i], ("%s: request %d among others"):format(what, i))
      end
      local after = m.dev:counts()
      -- tiles are for bf16; f32 products run on vectors
      for name, n in pairs(act == "bf16" and after or {}) do
        verdict((n > before[name]) == (name == path), ("%s: path %s ran %d products"):format(what, name,
          n - before[name]))
      end
      local dev = m.dev
      m:close()
      dev:close()
    end
  end
end
verdicts.done()
