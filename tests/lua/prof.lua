-- The step trace of a model: off, on, off again; parts and ops of every step, with the recipe's own lines; Chrome's
-- format parses, and its events lie within their steps; two models at once; the command line writes it.
local model, prof, json, file = require "pl.model", require "pl.prof", require "pl.json", require "pl.file"
local verdicts = dofile "tests/verdicts.lua"
local verdict = verdicts.ok
local tiny = "tests/data/tiny-llama"
local prompt = { 5, 9, 17, 4, 30, 2, 8 }
local function run(m, n, k)
  local r = {}
  for i = 1, k or 1 do r[i] = m:submit { ids = prompt, max_tokens = n, ignore_eos = true } end
  while m:step() > 0 do end
  return r[1].ids
end

local m = model.load(tiny, { context = 128, batch = 4, prefix = false })
local want = table.concat(run(m, 6), " ")
local t = m:prof()
verdict(#t.steps == 0 and not tostring(t):find "\n" and t:summary().seconds == 0, "off: nothing is recorded")
m:prof { steps = 5 }
verdict(#m:prof().steps == 0, "on: nothing yet")
verdict(table.concat(run(m, 6), " ") == want, "a trace changes no token")
run(m, 3, 3)
t = m:prof()
verdict(#t.steps == 5, "the last steps are kept: " .. #t.steps)

-- parts and ops
local text = require("pl.recipes.text").llama
local source, n = {}, 0
for line in (text .. "\n"):gmatch "(.-)\n" do n = n + 1 source[n] = line end
local of_line = { embed = "op.embed", add = "x = x +", attend = "nn.gqa", kv_append = "nn.gqa", rope = "nn.gqa",
  swiglu = "nn.swiglu", rms_norm = "op.rms_norm", linear = "nn%.", gather = "return nn.logits" }
for i, o in ipairs(t.program) do
  local as = i > #t.program - 3 and "return nn.logits" or of_line[o.name]
  verdict(o.line and as and source[o.line]:find(as), ("%s, line %s: %s"):format(o.name, tostring(o.line),
    tostring(source[o.line])))
end
verdict(t.file == "recipes/llama.lua", "the recipe's file: " .. tostring(t.file))
for i, s in ipairs(t.steps) do
  local parts, ops = 0, 0
  for _, p in ipairs(prof.parts) do parts = parts + s.parts[p] end
  for _, x in ipairs(s.op_s) do ops = ops + x end
  verdict(#s.op_s == #t.program, "an entry for each op")
  verdict(parts <= s.total_s * (1 + 1e-9) and ops <= s.parts.ops * (1 + 1e-6) and ops > 0, "a step is its parts")
  verdict(i == 1 or s.number == t.steps[i - 1].number + 1, "steps in order")
end
local first, last = t.steps[3], t.steps[5]
verdict(first.tokens == 21 and first.spans == 3 and first.rows == 3 and last.tokens == 3 and last.rows == 3,
  "three prompts in one step, then three tokens")

-- the summary
local f, shares, calls = t:summary(), 0, 0
for _, r in ipairs(f.parts) do shares = shares + r.share end
for _, r in ipairs(f.ops) do calls = calls + r.calls end
verdict(math.abs(shares - 1) < 1e-6 and calls == 5 * #t.program, ("shares of %g, %d calls"):format(shares, calls))
verdict(f.steps == 5 and f.tokens == 1 + 1 + 21 + 3 + 3, "tokens of the steps: " .. f.tokens)
verdict(t:summary(3).tokens == 21 and t:summary(3).steps == 1, "one step's own")
for i = 2, #f.ops do verdict(f.ops[i - 1].s >= f.ops[i].s, "ops, the dearest first") end
verdict(tostring(t):find "attend" and tostring(t):find "llama: 5 steps", "a trace prints as its summary")

-- Chrome's format. Every op of a step in an ops part, every part in a step, nothing overlaps its neighbour.
local known = { M = 1, X = 1 }
local function check_chrome(text_of, pids)
  local d = json.decode(text_of)
  local seen, step, part, stop = {}, {}, {}, {}
  for _, v in ipairs(d.traceEvents) do
    verdict(known[v.ph] and v.pid >= 1 and v.pid <= pids, "a known event")
    if v.ph == "X" then
      seen[v.cat .. v.pid] = (seen[v.cat .. v.pid] or 0) + 1
      local from, to = v.ts, v.ts + v.dur
      local eps = 1e-3 + 1e-9 -- sums of three decimals
      local within = v.cat == "step" and { from = stop[v.pid] or 0, to = 1e300 }
        or v.cat == "part" and step[v.pid] or part[v.pid]
      if v.dur < 0 or from < within.from - eps or to > within.to + eps then
        verdict(false, ("%s %s from %.3f to %.3f, within %.3f to %.3f"):format(v.cat, v.name, from, to, within.from,
          within.to))
      end
      if v.cat == "step" then step[v.pid], stop[v.pid] = { from = from, to = to }, to
      elseif v.cat == "part" then step[v.pid].from, part[v.pid] = to, { from = from, to = to }
      else part[v.pid].from = to end
    end
  end
  return seen, d
end
local seen, d = check_chrome(t:chrome(), 1)
verdict(seen.step1 == 5 and seen.op1 == 5 * #t.program and seen.part1 >= 5, "five steps and all their ops")
verdict(d.traceEvents[1].args.name == "llama" and d.traceEvents[3].args.tokens == t.steps[1].tokens, "names, tokens")
verdict(json.decode(prof.chrome {}).traceEvents ~= nil, "no trace is a file too")

-- two models at once
local other = model.load("tests/data/tiny-qwen3", { context = 64, batch = 2 })
other:prof { steps = 100 }
run(m, 2)
run(other, 4)
local t2 = other:prof()
verdict(#t2.steps == 4 and t2.name ~= t.name and t2.file == "recipes/qwen3.lua", "each model has its own: "
  .. #t2.steps)
verdict(#m:prof().steps == 5 and m:prof().steps[5].number == m:metrics().steps - 1, "and goes on with it")
local both = check_chrome(prof.chrome { m:prof(), t2 }, 2)
verdict(both.step1 == 5 and both.step2 == 4 and both.op2 == 4 * #t2.program, "both in one file")

-- off again; bad calls
m:prof { steps = 0 }
run(m, 3)
verdict(#m:prof().steps == 0, "off again")
for what, call in pairs { ["want a whole number"] = { steps = -1 }, ["no 'steps'"] = {}, ["step"] = { step = 3 } } do
  local ok, why = pcall(m.prof, m, call)
  verdict(not ok and tostring(why):find(what, 1, true), "a bad call: " .. tostring(why))
end
other:close()
verdict(not pcall(function() return other:prof() end), "of a closed model")
m:close()

-- the command line
local program, path = (os.getenv "PL_BUILD" or "build") .. "/perilune", os.tmpname()
local function shell(line, ...) return os.execute((program .. " " .. line .. " >/dev/null"):format(...)) end
verdict(shell("run %s --ids 5,6,7 --max-tokens 3 --prof %s 2>/dev/null", tiny, path) == 0, "run --prof")
verdict(check_chrome(file.read(path, file.text), 1).step1 == 3, "run --prof FILE: three steps")
verdict(shell("bench serve %s --requests 3 --in 5 --out 4 --prof - 2>%s", tiny, path) == 0, "bench serve --prof -")
local told = file.read(path, file.text)
verdict(told:find "share" and told:find "attend", "bench serve --prof -: a summary: " .. told)
-- lines are the recipe's also where a script loads it
file.write(path .. ".lua", ([[local m = require("pl").load("%s")
m:prof { steps = 9 }
m:generate { ids = { 5, 6, 7 }, max_tokens = 3 }
local f = assert(io.open("%s", "w"))
for _, o in ipairs(m:prof().program) do f:write(o.name, " ", o.line, "\n") end
f:close()]]):format(tiny, path))
verdict(shell("%s", path .. ".lua") == 0, "a script")
local lines = {}
for k, o in ipairs(t.program) do lines[k] = o.name .. " " .. o.line .. "\n" end
local want_lines = table.concat(lines)
verdict(file.read(path, file.text) == want_lines, "a script's recipe: " .. file.read(path, file.text))
os.remove(path .. ".lua")
verdict(shell("run %s --ids 5 --max-tokens 1 --prof /nowhere/x.json 2>/dev/null", tiny) ~= 0, "a file nobody can write")
os.remove(path)

verdicts.done()
