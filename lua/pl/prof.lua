-- The step trace of an engine (m:prof): where the time of its last steps went, by part of the step and by op of the
-- recipe, as tables, as a summary, and in Chrome's trace format, which chrome://tracing and Perfetto show.
local abi, arg, json, schema = require "pl.abi", require "pl.arg", require "pl.json", require "pl.schema"
local C = abi.C
local M = {}

--- Parts of a step, in order: `plan` is the policy, in Lua; `begin` takes pages and compares their tags; `ops` is the
--- recipe's program; `commit` compares tags again and digests what is full; `publish` makes full pages known to the
--- prefix cache. What is left of the step is `rest`.
M.parts = { "plan", "begin", "ops", "commit", "sample", "publish", "scrub" }
assert(#M.parts == C.PL_N_PARTS)

local Trace = {}
Trace.__index = Trace

local function program_of(prog)
  local list, line, i = {}, abi.new "int32_t[1]", 0
  while prog do
    local op = C.pl_prog_op_at(prog, i, line)
    if op < 0 then break end
    i = i + 1
    list[i] = { name = abi.string(C.pl_op_name(op)), line = line[0] }
  end
  return list
end

--- The steps that an engine has kept: { name, file (the recipe's), program = { { name, line } of each op }, steps }.
--- Of each step, the oldest first: number, start_s, total_s, tokens, spans, rows, parts = { plan = s, ... }, op_s =
--- { s of each op }.
function M.read(ptr, prog, name, file)
  local t = setmetatable({ name = name, file = file, program = program_of(prog), steps = {} }, Trace)
  local s = C.pl_engine_traced(ptr, 0)
  while s ~= nil do
    local step = { number = tonumber(s.number), start_s = s.start_s, total_s = s.total_s, tokens = s.n_tokens,
      spans = s.n_spans, rows = s.n_rows, parts = {}, op_s = {} }
    for i, part in ipairs(M.parts) do step.parts[part] = s.part_s[i - 1] end
    for i = 1, s.n_ops do step.op_s[i] = s.op_s[i - 1] end
    t.steps[#t.steps + 1] = step
    s = C.pl_engine_traced(ptr, #t.steps)
  end
  return t
end

--- Where the time went, in all steps or in one (a number from 1): { steps, tokens, seconds, parts, ops }; parts and ops
--- are lists of { name, s, share, calls, mean_s }, ops have their recipe line. Ops of a line and a name are one row.
function Trace:summary(only)
  local steps = only and { self.steps[only] } or self.steps
  local f = { steps = #steps, tokens = 0, seconds = 0, parts = {}, ops = {} }
  local rest, at = 0, {}
  for i, part in ipairs(M.parts) do f.parts[i] = { name = part, s = 0, calls = #steps } end
  for k, o in ipairs(self.program) do
    local key = o.name .. o.line
    if not at[key] then
      at[key] = { name = o.name, line = o.line, s = 0, calls = 0 }
      f.ops[#f.ops + 1] = at[key]
    end
    at[k] = at[key]
  end
  for _, s in ipairs(steps) do
    f.tokens, f.seconds, rest = f.tokens + s.tokens, f.seconds + s.total_s, rest + s.total_s
    for i, part in ipairs(M.parts) do
      f.parts[i].s, rest = f.parts[i].s + s.parts[part], rest - s.parts[part]
    end
    for k, seconds in ipairs(s.op_s) do at[k].s, at[k].calls = at[k].s + seconds, at[k].calls + 1 end
  end
  f.parts[#f.parts + 1] = { name = "rest", s = math.max(rest, 0), calls = #steps }
  for _, list in ipairs { f.parts, f.ops } do
    for _, row in ipairs(list) do
      row.share = f.seconds > 0 and row.s / f.seconds or 0
      row.mean_s = row.calls > 0 and row.s / row.calls or 0
    end
  end
  table.sort(f.ops, function(a, b)
    if a.s ~= b.s then return a.s > b.s end
    if a.line ~= b.line then return a.line < b.line end
    return a.name < b.name
  end)
  return f
end

Trace.__tostring = function(t)
  local f = t:summary()
  local out = { ("%s: %d steps, %d tokens, %.3f s"):format(t.name, f.steps, f.tokens, f.seconds) }
  local function row(name, line, r)
    out[#out + 1] = ("  %-12s %5s %6.1f%% %9d %11.1f us"):format(name, line, r.share * 100, r.calls, r.mean_s * 1e6)
  end
  if f.steps == 0 then return out[1] end
  out[#out + 1] = ("  %-12s %5s %7s %9s %14s"):format("part", "", "share", "calls", "mean")
  for _, r in ipairs(f.parts) do row(r.name, "", r) end
  if #f.ops > 0 then
    out[#out + 1] = ("  %-12s %5s %7s %9s %14s   lines of %s"):format("op", "line", "share", "calls", "mean",
      t.file or "?")
  end
  for _, r in ipairs(f.ops) do row(r.name, r.line, r) end
  return table.concat(out, "\n")
end

-- An event from `from` to `to`, in nanoseconds. Both are rounded down from the trace's start, so that what lies within
-- something else in time does so in the file.
local event = '{"ph":"X","pid":%d,"tid":1,"ts":%.3f,"dur":%.3f,"cat":"%s","name":%s,"args":{%s}}'
local function nanoseconds(s) return math.floor(s * 1e9) end

--- Traces, one process each, as the JSON text that chrome://tracing and Perfetto load. Steps hold their parts, and the
--- part `ops` the calls of the program.
function M.chrome(traces)
  local out, zero = {}, math.huge
  for _, t in ipairs(traces) do if t.steps[1] then zero = math.min(zero, t.steps[1].start_s) end end
  for pid, t in ipairs(traces) do
    local quoted, lines = {}, {}
    for k, o in ipairs(t.program) do
      quoted[k], lines[k] = json.encode(o.name), ('"line":%d'):format(o.line)
    end
    out[#out + 1] = ('{"ph":"M","pid":%d,"name":"process_name","args":{"name":%s}}'):format(pid, json.encode(t.name))
    out[#out + 1] = ('{"ph":"M","pid":%d,"tid":1,"name":"thread_name","args":{"name":"steps"}}'):format(pid)
    local function add(cat, name, from, to, args)
      from, to = nanoseconds(from), nanoseconds(to)
      out[#out + 1] = event:format(pid, from / 1000, (to - from) / 1000, cat, name, args)
    end
    for _, s in ipairs(t.steps) do
      local from = s.start_s - zero
      local stop = from + s.total_s
      add("step", ('"step %d"'):format(s.number), from, stop, ('"tokens":%d,"spans":%d,"rows":%d'):format(s.tokens,
        s.spans, s.rows))
      for _, part in ipairs(M.parts) do
        local to = math.min(from + s.parts[part], stop)
        if s.parts[part] > 0 then add("part", '"' .. part .. '"', from, to, "") end
        local at = from
        for k, seconds in ipairs(part == "ops" and s.op_s or {}) do
          local done = math.min(at + seconds, to)
          add("op", quoted[k], at, done, lines[k])
          at = done
        end
        from = to
      end
    end
  end
  return '{"displayTimeUnit":"ms","traceEvents":[\n' .. table.concat(out, ",\n") .. "\n]}\n"
end

--- One trace as such a text; and as a file.
function Trace:chrome() return M.chrome { self } end
function Trace:save(path) require("pl.file").write(path, self:chrome()) end

arg.methods("t", Trace, arg.object("step trace", Trace), { summary = { "step?", schema.whole(1) }, chrome = {},
  save = { "path", "string" } })

return M
