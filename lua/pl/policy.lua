-- Scheduling policies: who goes next. A policy reads records that live in C and appends to a plan that C
-- checks; it can be unfair, it cannot corrupt memory. The state `s` is made by pl.engine.
local arg, err, file, schema = require "pl.arg", require "pl.err", require "pl.file", require "pl.schema"
local M = {}

local states = setmetatable({}, { __mode = "k" })
--- Called by pl.engine with each state that it makes.
function M.state(s)
  states[s] = true
  return s
end

-- Every request that decodes gets its token. Where the cache has no page left for one, the youngest gives up its
-- own: it waits and is computed anew.
local function decode_all(s)
  for r in s:running() do
    while not s:decode(r) do
      if s.tokens.left == 0 or s.rows.left == 0 then return end
      local last = s:youngest()
      if not last then break end
      if s:preempt(last) and last.id == r.id then break end
    end
  end
end

-- Prompts in the order that `next` gives them, as much of each as the step has room for; while requests decode no more
-- than a chunk of all together, as those wait for the step.
local function prefill_all(s, next)
  local decodes = s:running()() ~= nil
  local last = decodes and math.max(s.tokens.left - s.tokens.chunk, 0) or 0 -- of the step's tokens: not for prompts
  for r in next do
    local pages, most = s:pages_for(r), s.tokens.left - last
    if most <= 0 or s.rows.left == 0 then return end
    if r.loading == 0 then -- else it waits for its pages, and others go first
      if pages > 0 and s.pages.free - pages < s.pages.reserve then return end
      if not s:prefill(r, math.min(r.left, most)) and r.loading == 0 then return end
    end
  end
end

local LOOK_AHEAD = 256 -- waiting requests that are put in order; the others wait behind them

-- The waiting requests in order of key(r), the least first; where they are equal, as they came. A step has room for few
-- of them, so each is looked for when it is asked for.
local function sorted(s, key)
  local list, keys, n = {}, {}, 0
  if s.tokens.left == 0 or s.rows.left == 0 then return function() end end
  for r in s:waiting() do
    n = n + 1
    list[n], keys[n] = r, key(r)
    if n == LOOK_AHEAD then break end
  end
  return function()
    local best
    for i = 1, n do
      if keys[i] and (not best or keys[i] < keys[best]) then best = i end
    end
    if best then keys[best] = false end
    return list[best]
  end
end

--- Every running request gets its token; what is left of the step, or of a chunk, goes to prompts, first come first
--- served.
function M.decode_first(s)
  decode_all(s)
  prefill_all(s, s:waiting())
end

--- As decode_first, but the next prompt is one of the tenant that has been served least: the virtual token counter
--- of Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024). A tenant's share (1 if nobody says)
--- divides what it has been served.
function M.fair(s)
  decode_all(s)
  prefill_all(s, sorted(s, function(r) return s:served(r) / s:share(r) end))
end

--- As decode_first, but the prompt whose deadline comes first goes first; those without one go last.
function M.deadline(s)
  decode_all(s)
  prefill_all(s, sorted(s, function(r) return r.deadline_s > 0 and r.deadline_s or math.huge end))
end

--- As decode_first, but the prompt of which the prefix cache has most goes first, before its pages are gone.
function M.longest_prefix_first(s)
  decode_all(s)
  prefill_all(s, sorted(s, function(r) return -s:cached(r) end))
end

--- The policies by name.
M.names = { "decode_first", "fair", "deadline", "longest_prefix_first" }
local takes = { "s", function(s)
  if s == nil or not states[s] then return schema.show(s) .. ", want the state that a schedule is given" end
end }
local checked = {}
for _, name in ipairs(M.names) do checked[name] = takes end
arg.functions("pl.policy", M, checked)
local ours = {}
for _, name in ipairs(M.names) do ours[M[name]] = true end
--- Is this function one of the policies above?
function M.is_ours(f) return ours[f] ~= nil end

--- A policy from a text that returns function(s): the function, and the box that it runs in. limits: see pl.sandbox.
function M.load_text(text, name, limits)
  local box = require("pl.sandbox").new({ pl = require("pl").for_recipes, ["pl.nn"] = require "pl.nn" }, limits)
  local policy = box:call(box:load(text, name))
  if type(policy) ~= "function" then
    error(err.new(("a policy file returns function(s), not %s"):format(type(policy)), nil, name, 1), 0)
  end
  return policy, box
end

--- A policy by name, or from a file.
function M.load(name, limits)
  for _, known in ipairs(M.names) do if name == known then return M[name] end end
  local text, why = file.read(name, file.recipe)
  if not text and why:find "No such file" == nil then error(err.new(why), 0) end
  if not text then
    local near = err.closest(name, M.names)
    error(err.new(("no policy '%s'"):format(name) .. (near and (", did you mean '%s'?"):format(near) or ""),
      { "neither a file nor one of: " .. table.concat(M.names, " ") }), 0)
  end
  return M.load_text(text, name, limits)
end

local MAX_FAILURES = 20 -- in a row: an endless loop costs every step its time

-- What was preempted in this step waits again, and is seen if the step is looked at anew.
local function fall_back(own)
  if not own:has_plan() then own:_look() end
  M.decode_first(own)
end

--- A function that runs one step's policy: the recipe's under the limits of its box, or decode_first where that one
--- fails. It is called with the state as recipes see it, and the engine's own. counter.failures counts; .why is the
--- last failure of this policy, .off that it is not asked any more. The first failure of a policy is told.
function M.runner(schedule, box, counter)
  counter.why, counter.off = nil, nil
  schedule = schedule or M.decode_first
  if ours[schedule] then
    return function(_, own)
      schedule(own)
      if not own:has_plan() then fall_back(own) end
    end
  end
  local told, in_a_row = false, 0
  return function(shown, own)
    if in_a_row == MAX_FAILURES then return fall_back(own) end
    local ok, e = pcall(box.step, box, schedule, shown)
    if ok and (own:has_plan() or own:has_copies()) then
      in_a_row = 0
      return
    end
    in_a_row = in_a_row + 1
    counter.why = ok and "it planned nothing, though requests wait" or err.text(e)
    if not told then
      io.stderr:write("perilune: the policy failed, decode_first takes its place in that step\n", counter.why, "\n")
    end
    told = true
    if in_a_row == MAX_FAILURES then
      counter.off = true
      io.stderr:write(("perilune: it failed in %d steps in a row, and is not asked any more\n"):format(in_a_row))
    end
    counter.failures = counter.failures + 1
    fall_back(own)
  end
end

return M
