-- luacheck: no max line length
-- templates.lua [N [SEED]]: damages chat templates and conversations in N ways (1000) and renders them. Each ends with
-- a text within the caps or with an error of its own that has a kind and a line: no Lua error, nothing slow, no growth,
-- no change of what was given, the same again if tried again. Seeds: tests/data/templates, and ../shared if it is there;
-- one case goes on as templates.lua 1 SEED. Prints how many of each kind there were, and how many a second.
local template = require "pl.template"
local count, first = tonumber(arg[1]) or 1000, tonumber(arg[2]) or 1
local CAPS = { steps = 100000, bytes = 2 ^ 22, output = 2 ^ 18, depth = 30 }
local SLOW = os.getenv "PL_SANITIZED" ~= "" and os.getenv "PL_SANITIZED" and 20 or 2 -- seconds
template.set_now(0)

-- Random numbers of our own, so that a seed means the same case everywhere.
local state
local function random(n) -- 1..n
  state = (state * 48271) % 2147483647
  return math.floor(state / 2147483647 * n) + 1
end
local function pick(list) return list[random(#list)] end
local function flip(odds) return random(odds) == 1 end

local templates, rows = {}, {}
local function add(path, name)
  local f = assert(io.open(path .. "/" .. name, "rb"))
  if name:find "%.jinja$" then
    templates[#templates + 1] = f:read "*a"
  else
    for line in f:lines() do rows[#rows + 1] = line end
  end
  f:close()
end
for _, name in ipairs { "chat.jinja", "types.jinja", "conversations.jsonl" } do add("tests/data/templates", name) end
local own = #templates
do
  local there = io.open "../shared/templates/README.md"
  if there then
    there:close()
    for _, dir in ipairs { "../shared/templates", "../shared/golden/templates" } do
      local p = io.popen("ls " .. dir)
      for name in p:lines() do if name:find "%.jinja" or name:find "%.jsonl$" then add(dir, name) end end
      p:close()
    end
  end
end
local compiled, parsed = {}, {}
for i, s in ipairs(templates) do compiled[i] = template.compile(s, { caps = CAPS }) end

-- Pieces that change what a template or a conversation means.
local bits = { "{{", "}}", "{%", "%}", "{%-", "-%}", "{#", "#}", "+%}", "{% raw %}", "{% endraw %}", "{% if x %}", "{% endif %}", "{% else %}",
  "{% for a in messages %}", "{% endfor %}", "{% macro f(x, y=1) %}", "{% endmacro %}", "{{ f(1) }}", "{% set x = x ~ x %}", "{% set ns.x = 1 %}",
  "{% break %}", "{% continue %}", "{% call f() %}", "{% endcall %}", "{% filter upper %}", "{% endfilter %}", " recursive ", "loop(messages)", "loop.last",
  "|tojson", "|join", "|list", "|sort", "|map('upper')", "|int", "|float", "|length", "|items", "|groupby('role')", "|indent(9)", "|format(1)", "|batch(3)",
  ".items()", ".__class__", ".append(x)", ".pop(0)", ".split('a')", ".format(x)", ".center(99)", ".join(x)", ".replace('', 'ab')", "[::-1]", "[1:]", "[-1]", "['a']",
  " is defined", " is not string", " in ", " not in ", " and ", " or ", "not ", " if ", " else ", " ~ ", " + ", " * ", " ** ", " // ", " % ", "-", "(", ")", "[", "]", "{", "}",
  ",", ":", "|", ".", "=", "==", "'", '"', "\\", "\n", " ", "1", "0", "9999999", "1e308", "2.5", "'a' * 9999", "range(99999)", "none", "true", "x", "messages", "tools",
  "namespace(x=1)", "raise_exception('e')", "strftime_now('%Y')", "caller()", "varargs", "kwargs", "é", "\255", "\0", "Σ", "<think>" }
local values = { "null", "true", "0", "-1", "1.5", "1e400", "12345678901234567890", '""', '"a"', '"é\\n"', '"<think>x</think>"', '"user"', '"system"', '"tool"',
  '"assistant"', "[]", "{}", "[1]", '{"type":"text","text":"t"}', '[{"role":"user"}]', '"\\ud800"', '{"a":{"b":[]}}', '{"items":1,"keys":[]}' }

local function damage(s, pieces)
  for _ = 1, random(3) do
    local at, how = random(#s + 1), random(6)
    if how == 1 then s = s:sub(1, at - 1) .. pick(pieces) .. s:sub(at)
    elseif how == 2 then s = s:sub(1, at - 1) .. s:sub(at + random(12))
    elseif how == 3 then s = s:sub(1, at - 1) .. string.char(random(256) - 1) .. s:sub(at + 1)
    elseif how == 4 then -- a part again elsewhere
      local to = random(#s + 1)
      s = s:sub(1, at - 1) .. s:sub(to, to + random(60)) .. s:sub(at)
    elseif how == 5 then s = s:sub(1, at - 1) .. pick(pieces) .. s:sub(at + random(8))
    else s = s:sub(1, at) end
  end
  return s
end

-- A conversation with a value in another's place, as text: cut at the commas and colons.
local function damage_row(s)
  if flip(6) then return damage(s, values) end
  for _ = 1, random(3) do
    local places = {}
    for a, b in s:gmatch '[:%[,]()"?[^,:%[%]{}"]+"?()' do places[#places + 1] = { a, b } end
    if #places == 0 then return s end
    local p = pick(places)
    s = s:sub(1, p[1] - 1) .. pick(values) .. s:sub(p[2])
  end
  return s
end

local seen, longest, now = {}, 0, 0
local function fail(what, ...)
  print(("seed %d: " .. what):format(now, ...))
  os.exit(1)
end
local function vars_of(row)
  if type(row) ~= "table" or row.kind ~= "dict" then return nil end
  local vars = { messages = row.at.messages, tools = row.at.tools }
  local kw = row.at.kwargs
  if type(kw) == "table" and kw.kind == "dict" then
    for _, k in ipairs(kw.keys) do vars[k] = kw.at[k] end
  end
  return vars
end

local function one()
  local t
  if flip(2) then
    local i = random(#templates)
    if not flip(4) then i = random(own) end
    local ok, e = pcall(template.compile, damage(templates[i], bits), { caps = CAPS })
    if not ok then
      if type(e) ~= "table" or e.kind ~= "syntax" and e.kind ~= "limit" then fail("loading: %s", tostring(e)) end
      if e.kind == "syntax" and not e.line then fail("no line: %s", tostring(e)) end
      return "load error"
    end
    t = e
  else
    t = pick(compiled)
  end
  local i = random(#rows)
  local row = parsed[i] or template.json(rows[i])
  parsed[i] = row
  local before
  if flip(2) then
    local ok, r = pcall(template.json, damage_row(rows[i]))
    if not ok and not tostring(r):find "json: " then fail("reading JSON: %s", tostring(r)) end
    if ok then row = r end
  end
  local vars = vars_of(row)
  if not vars then return "no object" end
  if flip(16) then before = template.encode(row) end
  local text, e = t:render(vars)
  if text and #text > CAPS.output then fail("%d bytes of output", #text) end
  if not text and (e.kind == "internal" or not e.kind or e.kind ~= "limit" and not e.line and not vars.continue_final_message) then
    fail("rendering: %s %s", tostring(e.kind), tostring(e))
  end
  if before then
    if template.encode(row) ~= before then fail "the template changed what was given" end
    local again, e2 = t:render(vars)
    if again ~= text or e2 and e2.msg ~= e.msg then fail("%s, then %s", text or e.msg, again or e2.msg) end
  end
  return text and "text" or e.kind
end

collectgarbage()
local start, held = os.clock(), collectgarbage "count"
for i = 1, count do
  now = first + i - 1
  state = (now * 7919 + 12345) % 2147483646 + 1
  local before = os.clock()
  local kind = one()
  local took = os.clock() - before
  longest = math.max(longest, took)
  if took > SLOW then fail("took %.1f s", took) end
  seen[kind] = (seen[kind] or 0) + 1
  if i % 20000 == 0 or i == count then
    collectgarbage()
    collectgarbage()
    local grown = (collectgarbage "count" - held) / 1024
    if grown > 64 then fail("%.0f MB more than at the start", grown) end
  end
end
local kinds = {}
for k, n in pairs(seen) do kinds[#kinds + 1] = ("%s %d"):format(k, n) end
table.sort(kinds)
print(("%d cases in %.0f s (%.0f a second; the longest %.0f ms): %s"):format(count, os.clock() - start, count / (os.clock() - start),
  longest * 1e3, table.concat(kinds, ", ")))
