-- Chat templates: small templates of our own with the text or the error that Jinja gives (as transformers configures
-- it), what an attack tries, the caps, the command line; and all goldens, where ../shared is there.
-- luacheck: no max line length
local template, chat = require "pl.template", require "pl.chat"
local perilune = (os.getenv "PL_BUILD" or "build") .. "/perilune"
local verdicts = dofile "tests/verdicts.lua"
local verdict = verdicts.ok
template.set_now(os.time { year = 2026, month = 1, day = 15, hour = 9, min = 30, sec = 5 })

local vars = template.json [[{"d": {"a": 1, "b": "two", "c": [1, null], "items": 7}, "l": ["x", "yy", "Z"], "fl": 0.1,
  "big": 123456789012345678901234567890, "one": 1.0, "t": true, "n": null, "u": "ßÄé日本",
  "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello", "x": {"y": [{"z": 1}]}}]}]]
local function render(text, caps)
  local ok, t = pcall(template.compile, text, { caps = caps })
  if not ok then return nil, t, "load" end
  local given = {}
  for _, k in ipairs(vars.keys) do given[k] = vars.at[k] end
  return t:render(given)
end

-- text -> what comes out
local function gives(text, want)
  local got, e = render(text)
  verdict(got == want, ("%s\n  got  %s\n  want %s"):format(text, tostring(got or e), want))
end
-- text -> kind of error, its line, part of its message
local function fails(text, kind, line, msg, caps)
  local got, e = render(text, caps)
  verdict(got == nil and e.kind == kind and (not line or e.line == line) and (not msg or e.msg:find(msg, 1, true)),
    ("%s\n  got  %s %s\n  want %s at %s"):format(text:sub(1, 200), tostring(got and got:sub(1, 200) or e.kind), tostring(e), kind, tostring(line)))
end

-- white space
gives("a\n  {% if true %}\nb\n  {% endif %}\nc\n", "a\nb\nc")
gives("a\n  {%- if true +%}\nb\n  {%+ endif -%}\n c", "a\nb\n  c")
gives("  {{ 1 }}\n  {{- 2 -}}  \n x", "  12x")
gives("{# c #}\nx {#- c -#} y\n\n", "xy\n")
gives("a {% raw %}{{ x }}{%- endraw %} b", "a {{ x }} b")
gives("\r\na\r\n{% set x = 1 %}\r\nb", "\na\nb")
gives("{{ 'a\\n\\t\\x41\\u00e9\\q' 'b' }}", "a\n\tAé\\qb")
-- printing
gives("{{ none }} {{ true }} {{ 1.0 }} {{ 1e20 }} {{ 1e-5 }} {{ big }} {{ one }} {{ fl }}", "None True 1.0 1e+20 1e-05 123456789012345678901234567890 1.0 0.1")
gives("{{ [1, 'a', none, true, 2.5] }} {{ {'k': 'v', 1: (1,)} }} {{ () }}", "[1, 'a', None, True, 2.5] {'k': 'v', 1: (1,)} ()")
gives([[{{ ["it's", '"', "\n\x00é"] }}]], [=[["it's", '"', '\n\x00é']]=])
gives("{{ missing }}|{{ d.nope }}|{{ d['nope'] }}|{{ l[9] }}", "|||")
gives("{{ namespace(a=1) }} {{ range(3) }} {{ d.keys() }}", "<Namespace {'a': 1}> range(0, 3) dict_keys(['a', 'b', 'c', 'items'])")
-- attributes: methods first with a dot, keys first in brackets
gives("{{ d.items()|list|length }} {{ d['items'] }} {% if {}['items'] %}method{% endif %}", "4 7 method")
gives("{{ messages[1].x.y[0].z }} {{ messages[-1]['role'] }}", "1 assistant")
-- operators
gives("{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 3 ** 2 }} {{ 1 + 1.0 }} {{ 'a' * 3 }} {{ [1] + [2] }}", "3 -4 2 3.5 64 2.0 aaa [1, 2]")
gives("{{ 1 < 2 < 3 }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' in 'abc' }} {{ 'z' not in l }} {{ not l }} {{ l and 5 }} {{ '' or 'x' }}", "True True True True True False 5 x")
gives("{{ 1 ~ 'a' ~ none ~ 2.0 }} {{ '%s-%05.1f' % ('a', 2.25) }} {{ '%(a)s' % d }} {{ -2|abs }}", "1aNone2.0 a-002.2 1 2")
gives("{{ 'y' if t else 'n' }} {{ 'y' if n }}|", "y |")
gives("{{ u|length }} {{ u[1:3] }} {{ u[::-1] }} {{ u|upper }} {{ u|lower }} {{ l[::-1] }} {{ l[-2:] }}", "5 Äé 本日éÄß SSÄÉ日本 ßäé日本 ['Z', 'yy', 'x'] ['yy', 'Z']")
-- statements
gives("{% for x in l %}{{ loop.index }}/{{ loop.length }}{{ x }}{{ '' if loop.last else ', ' }}{% else %}none{% endfor %}", "1/3x, 2/3yy, 3/3Z")
gives("{% for x in [] %}{% else %}none{% endfor %}{% for k, v in d|items %}{{ k }}{{ v }}{% endfor %}", "nonea1btwoc[1, None]items7")
gives("{% for x in range(9) if x is odd %}{% if x == 3 %}{% continue %}{% elif x > 5 %}{% break %}{% endif %}{{ x }}{{ loop.revindex }}{% endfor %}", "1452")
gives("{% for x in l %}{{ loop.previtem or '-' }}{{ loop.nextitem|default('+') }}{{ loop.cycle('a', 'b') }}{{ loop.changed(1) }} {% endfor %}", "-yyaTrue xZbFalse yy+aFalse ")
gives("{% for n in [{'v': 1, 'c': [{'v': 2, 'c': []}]}] recursive %}{{ n.v }}{{ loop.depth }}{{ loop(n.c) }}{% endfor %}", "1122")
gives("{% set x = 1 %}{% for i in [1] %}{% set x = 2 %}{% endfor %}{{ x }}{% set ns = namespace(x=1) %}{% for i in [1, 2] %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}", "14")
gives("{% set a, b = 1, [2] %}{{ a }}{{ b }}{% set c %}{{ a }}!{% endset %}{{ c }}{% set e | upper %}x{% endset %}{{ e }}", "1[2]1!X")
gives("{% macro m(a, b=2, c=b) %}{{ a }}{{ b }}{{ c }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1) }}{{ m(1, 5, 6, 7, z=8) }}", "122(){}156(7,){'z': 8}")
gives("{% macro m() %}<{{ caller(1) }}>{% endmacro %}{% call(x) m() %}in{{ x }}{% endcall %}", "<in1>")
gives("{% filter upper %}a{{ 'b' }}{% endfilter %}{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}", "AB3")
gives("{% generation %}x{% set q = 1 %}{% endgeneration %}{{ q }}", "x")
gives("{% set q = [] %}{% set _ = q.append(1) %}{% set _ = q.append(2) %}{{ q.pop(0) }}{{ q }}", "1[2]")
gives("{% if x is not defined %}{% set x = 5 %}{% endif %}{{ x }}", "5")
gives("{{ dict(a=1, **{'b': 2}) }}{% set j = joiner('|') %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}{% set c = cycler(1, 2) %}{{ c.next() }}{{ c.next() }}{{ c.next() }}", "{'a': 1, 'b': 2}x|yy|Z121")
gives("{{ strftime_now('%d %b %Y %H:%M:%S %-d') }}", "15 Jan 2026 09:30:05 15")
-- methods, filters, tests
gives("{{ ' a b '.strip() }}|{{ 'a,b'.split(',') }}|{{ 'abc'.replace('b', 'X') }}|{{ 'x=1'.partition('=') }}|{{ 'abcabc'.rfind('b') }}|{{ 'ab'.center(6, '*') }}|{{ 'They are'.title() }}", "a b|['a', 'b']|aXc|('x', '=', '1')|4|**ab**|They Are")
gives("{{ '{} {1} {a:>4}|{:.2f}'.format is callable }}{{ '{} {a:>4}|{:.2f}'.format('x', 2.345, a='b') }}{{ '{0.role}'.format(messages[0]) }}", "Truex    b|2.35user")
gives("{{ d|tojson }} {{ [1.0, none, 'é<\"'] | tojson }} {{ {'a': [1]}|tojson(indent=2) }} {{ 'é'|tojson(ensure_ascii=true) }}", '{"a": 1, "b": "two", "c": [1, null], "items": 7} [1.0, null, "é<\\""] {\n  "a": [\n    1\n  ]\n} "\\u00e9"')
gives("{{ messages|selectattr('role', 'equalto', 'user')|map(attribute='content')|join(',') }} {{ messages|map(attribute='role')|list }} {{ l|map('upper')|first }}", "Hi ['user', 'assistant'] X")
gives("{{ [3, 1, 2]|sort }} {{ l|sort }} {{ d|dictsort|first }} {{ [1, 2, 3]|sum }} {{ l|reverse|join }} {{ [1, 1, 2]|unique|list }} {{ range(5)|batch(2)|list }}", "[1, 2, 3] ['x', 'yy', 'Z'] ('a', 1) 6 Zyyx [1, 2] [[0, 1], [2, 3], [4]]")
gives("{{ 2.5|round }} {{ 2.675|round(2) }} {{ '42abc'|int(7) }} {{ '3.9'|int }} {{ 'x'|float }} {{ 3|string + '!' }} {{ none|default('d', true) }} {{ q|default('e') }}", "2.0 2.67 7 3 0.0 3! d e")
gives("{{ 'a\nb'|indent(2) }}|{{ 'a b'|title }}|{{ ' x '|trim }}|{{ '<'|e }}|{{ '<'|safe }}|{{ 'a b&'|urlencode }}|{{ 'foo bar baz qux'|truncate(9) }}", "a\n  b|A B|x|&lt;|<|a%20b%26|foo...")
gives("{{ 'x' is string }} {{ d is mapping }} {{ l is sequence }} {{ 3 is odd }} {{ 6 is divisibleby 3 }} {{ n is none }} {{ q is defined }} {{ 1 is sameas true }} {{ 'a' is in 'abc' }} {{ 1.0 is integer }}", "True True True True True True False False True False")
gives("{% for i in [1, 2] %}{{ i }}{% continue %}{% else %}e{% endfor %}{{ 'x' % nope }}{{ range(5)[::2] }}{{ range(4).index(2) }}", "12exrange(0, 5, 2)2")
-- what the caller gave stays as it is
fails("{% set _ = l.append(1) %}", "sandbox", 1, "access to attribute 'append' of 'list' object is unsafe.")
fails("{% set _ = d.update({'a': 2}) %}", "sandbox", 1)
fails("{% set _ = messages[0].pop('role') %}", "sandbox", 1)
fails("{% set x = l %}{% set _ = x.clear() %}", "sandbox", 1)
gives("{% set x = l|list %}{% set _ = x.append(1) %}{{ x|length }}{{ l|length }}", "43")
-- errors, with the line
fails("a\n\n{{ raise_exception('no %s way') }}", "raised", 3, "no %s way")
fails("\n{{ d.a.b.c }}", "undefined", 2, "'int object' has no attribute 'b'")
fails("{{ nope.x }}", "undefined", 1, "'nope' is undefined")
fails("{{ 'a' + 1 }}", "python", 1, 'can only concatenate str (not "int") to str')
fails("{{ 'a' +\n none.x.y }}", "undefined", 2)
fails("{% macro m() %}\n{{ 1 / 0 }}\n{% endmacro %}\n{{ m() }}", "python", 2, "division by zero")
for text, line in pairs { ["{{ 1 + }}"] = 1, ["{% for %}"] = 1, ["\n{% if x %}"] = 2, ["\n{% nope %}"] = 2, ["{{ x"] = 1, ["{# x"] = 1,
  ["{{ 'a }}"] = 1, ["\n\n{{ a b }}"] = 3, ["{{ (1 }}"] = 1, ["{% include 'x' %}"] = 1, ["{% extends 'x' %}"] = 1, ["{% import 'x' as y %}"] = 1,
  ["{% block a %}{% endblock %}"] = 1, ["{% do x %}"] = 1, ["{% break %}"] = 1, ["{{ x|nope }}"] = 1, ["\n{{ x is nope }}"] = 2, ["\n{{ nope(1) }}"] = 2,
  ["{% set 1 = 2 %}"] = 1, ["{% for loop in x %}{% endfor %}"] = 1, ["{% raw %}"] = 1, ["{% macro f(a=1, b) %}{% endmacro %}"] = 1, ["{{ f(a=1, 2) }}"] = 1,
  ["{{ ? }}"] = 1, ["{{ a｜b }}"] = 1, ["{{ a is b is c }}"] = 1, ["{{ `x` }}"] = 1, ["{% autoescape true %}{% endautoescape %}"] = 1 } do
  fails(text, "syntax", line)
end
-- in a branch, what is unknown is an error where it is reached, as in Jinja
gives("{% if false %}{{ x|nope }}{{ nope(1) }}{% endif %}ok", "ok")
fails("{% if true %}\n{{ x|nope }}{% endif %}", "other", 2, "No filter named 'nope'")
-- attacks
for _, text in ipairs { "{{ ''.__class__.__mro__ }}", "{{ d.__init__.__globals__ }}", "{{ ''['__class__']['x'] }}", "{{ '{0.__class__.__mro__}'.format('') }}",
  "{{ (''|attr('__class__')).x }}", "{{ ''.__class__() }}", "{% set ns = namespace() %}{{ ns.__class__.x }}", "{{ d.get.__self__.x }}", "{{ range.__globals__.x }}",
  "{% set ns = namespace() %}{% set ns._x = 1 %}", "{{ namespace(__class__=1) }}" } do
  local got, e = render(text)
  verdict(got == nil and (e.kind == "sandbox" or e.kind == "undefined"), text .. " gave " .. tostring(got or e.kind .. e.msg))
end
local small = { steps = 1e5, bytes = 2 ^ 22, depth = 50, output = 2 ^ 16 }
for _, text in ipairs { "{{ 'a' * 10**9 }}", "{{ [0] * 10**9 }}", "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
  "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "{% macro f(x) %}{{ f(x) }}{{ f(x) }}{% endmacro %}{{ f(1) }}",
  "{% set ns = namespace(s='ab') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}", "{% set a = [] %}{% set _ = a.append(a) %}{{ a }}",
  "{% set a = [] %}{% set _ = a.append(a) %}{{ a|tojson }}", "{% set a = [] %}{% set b = [a] %}{% set _ = a.append(b) %}{{ a == b }}", "{{ '%1000000000d' % 1 }}",
  "{{ '{:1000000000}'.format(1) }}", "{{ 'a'.center(10**9) }}", "{{ 'x'|center(10**12) }}", "{{ ('a' * 1000).replace('', 'b' * 10000) }}", "{{ 9**9**9 }}",
  "{{ ['a' * 1000] * 100000 }}", "{% for i in range(99999) %}aaaa{% endfor %}", "{% set a = [0] %}{% for x in a %}{% set _ = a.append(x) %}{% endfor %}",
  "{% for n in [1] recursive %}{{ loop([1]) }}{% endfor %}", "{% set q = [1] %}{% for i in range(40) %}{% set _ = q.extend(q) %}{% endfor %}",
  "{{ ('a,' * 500000).split(',')|length }}", "{{ range(99999)|batch(1)|list|map('tojson')|list|sort }}", "{{ ('a' * 60000)|join('b' * 60000) }}" } do
  local before = os.clock()
  fails(text, "limit", nil, nil, small)
  verdict(os.clock() - before < 2, text .. " took long")
end
fails("{{ range(10**6) }}", "python", 1, "Range too big")
fails(("("):rep(5000) .. "1" .. (")"):rep(5000), "limit", nil, nil, { bytes = 100 })
fails("{{ " .. ("("):rep(5000) .. "1" .. (")"):rep(5000) .. " }}", "syntax", 1)
fails("{{ " .. ("not "):rep(5000) .. "1 }}", "syntax", 1)
fails("{{ 1" .. (" + 1"):rep(5000) .. " }}", "syntax", 1)
fails(("{% if 1 %}"):rep(3000) .. ("{% endif %}"):rep(3000), "syntax")
-- values of Lua, and of JSON
do
  local t = template.compile "{{ a }} {{ b }} {{ c }} {{ e|tojson }}"
  verdict(t:render { a = { 1, 2 }, b = { x = 1.5 }, c = true, e = require("pl.json").list {} } == "[1, 2] {'x': 1.5} True []", "values of Lua")
  local text, e = t:render { a = print }
  verdict(text == nil and e.kind == "python", "a function as a variable")
  for _, bad in ipairs { "{", "[1,]", '{"a" 1}', "01", '"\1"', '"\\x"', "nul", "1 2", "[" .. ("["):rep(500), "", '"\\ud8"', "-" } do
    verdict(not pcall(template.json, bad), "JSON: " .. bad:sub(1, 20))
  end
  verdict(template.encode(template.json '{"z": 1, "a": [1.0, 1e2, -5, "\\ud83d\\ude00\\n", {}, []], "z": 2}') == '{"z": 2, "a": [1.0, 100.0, -5, "😀\\n", {}, []]}', "JSON there and back")
  local p = template.prepare(template.json '[{"role": "assistant", "content": null, "reasoning": "r"}]')
  verdict(template.encode(p) == '[{"thinking": "r", "role": "assistant", "reasoning": "r", "reasoning_content": "r"}]', "prepare: " .. template.encode(p))
end

-- The command line, and a model's template.
local function call(args, input)
  local stdin = os.tmpname()
  local f = assert(io.open(stdin, "wb"))
  f:write(input or "")
  f:close()
  local p = io.popen(("%s render %s <%s 2>&1; echo \" $?\""):format(perilune, args, stdin))
  local out = p:read "*a"
  p:close()
  os.remove(stdin)
  local body, code = out:match "^(.*) (%d+)\n$"
  return body, tonumber(code)
end
do
  local dir = os.tmpname()
  os.remove(dir)
  os.execute("mkdir " .. dir)
  local function write(name, text)
    local f = assert(io.open(dir .. "/" .. name, "wb"))
    f:write(text)
    f:close()
  end
  write("t.jinja", "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<bot>{% endif %}{% if messages[0].role == 'x' %}{{ raise_exception('no x') }}{% endif %}")
  local out, code = call(dir .. "/t.jinja", '{"messages":[{"role":"u","content":"é"}],"kwargs":{"add_generation_prompt":true}}\n\n{"messages":[{"role":"x","content":1}]}\n')
  verdict(code == 0 and out == '{"text":"<u>é\\n<bot>"}\n{"error":"no x","kind":"raised","line":2}\n', "render: " .. out)
  -- what cannot be rendered is an answer too, and the next line has its own
  for input, want in pairs { ["[1]"] = "not a JSON object", ["{"] = "not a JSON object: json:", ["{}"] = "messages: missing, want a list",
    ['{"messages":null}'] = "messages: null, want a list", ['{"messages":"Hi"}'] = "messages: \\\"Hi\\\", want a list",
    ['{"messages":[],"kwargs":3}'] = "kwargs: want an object" } do
    out, code = call(dir .. "/t.jinja", "\n" .. input .. '\n{"messages":[{"role":"u","content":"b"}]}\n')
    local first, second = out:match "^(.-)\n(.*)$"
    verdict(code == 1 and first:find('{"error":"line 2: ' .. want, 1, true) and first:find('"kind":"input","line":null}', 1, true)
      and second == '{"text":"<u>b\\n"}\n', "render of " .. input .. ": " .. out)
  end
  write("bad.jinja", "a\n{% nope %}")
  out, code = call(dir .. "/bad.jinja", "")
  verdict(code == 1 and out:find("bad.jinja:2: Encountered unknown tag 'nope'", 1, true) and out:find("2 | {% nope %}", 1, true), "a load error: " .. out)
  write("broken.jinja", "{{ messages.x.y }}")
  local opened, why = pcall(chat.open, dir .. "/broken.jinja")
  verdict(not opened and tostring(why):find("broken.jinja:1: 'list object' has no attribute 'x'", 1, true), "a template that renders nothing: " .. tostring(why))
  out, code = call(dir .. "/broken.jinja", '{"messages":{"x":{"y":5}}}')
  verdict(code == 0 and out == '{"text":"5"}\n', "but render shows what it does: " .. out)
  write("tokens.jinja", "{{ bos_token + 'x' }}")
  verdict(pcall(chat.open, dir .. "/tokens.jinja"), "tokens that a file does not say")
  out, code = call(dir, "")
  verdict(code == 1 and out:find("has no chat template", 1, true), "no template: " .. out)
  write("tokenizer_config.json", '{"bos_token": {"content": "<s>"}, "chat_template": [{"name": "default", "template": "{{ bos_token }}D{{ messages }}"}, {"name": "rag", "template": "R"}]}')
  out, code = call(dir, '{"messages":[]}')
  verdict(code == 0 and out == '{"text":"<s>D[]"}\n', "a list of templates: " .. out)
  verdict(call(dir .. " --name rag", '{"messages":[]}') == '{"text":"R"}\n', "a named template")
  out, code = call(dir .. " --name x", "")
  verdict(code == 1 and out:find("no chat template 'x'", 1, true) and out:find("default rag", 1, true), "an unknown name: " .. out)
  write("chat_template.jinja", "J{{ strftime_now('%Y') }}")
  verdict(call(dir .. " --now 2031-02-03", '{"messages":[]}') == '{"text":"J2031"}\n', "a template beside the tokenizer")
  verdict(select(2, call(dir .. " --now x", "{}")) == 2, "a wrong time is a wrong call")
  out, code = call(dir .. "/t.jinja --probe", "")
  verdict(code == 0 and out:find('opening "<bot>"', 1, true) and out:find("parts   yes", 1, true), "probe: " .. out)
  out, code = call("/nowhere/x.jinja", "")
  verdict(code == 1 and out:find("No such file", 1, true), "no file: " .. out)
  local c = chat.open(dir .. "/t.jinja")
  verdict(c:prompt { messages = { { role = "user", content = "Hi" } } } == "<user>Hi\n<bot>", "chat:prompt")
  os.execute("rm -r " .. dir)
end
do -- a model without a template runs; asked for it, it says that it has none
  local m = require("pl.model").open "tests/data/tiny-llama"
  local ok, e = pcall(m.render, m, { messages = {} })
  verdict(not ok and tostring(e):find "no chat template", "a model without a template: " .. tostring(e))
  m:close()
end

-- The templates and conversations that the fuzzer begins with.
do
  local conversations, compiled, n = {}, {}, 0
  for line in io.lines "tests/data/templates/conversations.jsonl" do
    local row = template.json(line).at
    local given = { messages = row.messages, tools = row.tools }
    for _, k in ipairs(row.kwargs.keys) do given[k] = row.kwargs.at[k] end
    conversations[#conversations + 1] = given
  end
  for line in io.lines "tests/data/templates/renderings.jsonl" do
    local want = template.json(line).at
    local name = want.template
    if not compiled[name] then
      local f = assert(io.open("tests/data/templates/" .. name .. ".jinja", "rb"))
      compiled[name] = template.compile(f:read "*a", { name = name })
      f:close()
    end
    local text, e = compiled[name]:render(conversations[n % #conversations + 1])
    n = n + 1
    verdict((text or e.msg) == (want.text or want.error), ("%s %d: %s"):format(name, n, text or e.msg))
  end
  verdict(n == 10, "renderings: " .. n)
end

-- The goldens.
local shared = "../shared"
local ran = 0
local function golden(name)
  local f = assert(io.open(("%s/templates/%s.jinja"):format(shared, name), "rb"))
  local t = template.compile(f:read "*a", { name = name })
  f:close()
  local slowest = 0
  for line in io.lines(("%s/golden/templates/%s.jsonl"):format(shared, name)) do
    local row = template.json(line).at
    local given = { messages = row.messages, tools = row.tools }
    for _, k in ipairs(row.kwargs.keys) do given[k] = row.kwargs.at[k] end
    local before = os.clock()
    local text, e = t:render(given)
    slowest = math.max(slowest, os.clock() - before)
    local want = row.text or row.text_if_mutable
    local ok
    if want then ok = text == want
    else ok = text == nil and e.kind == row.kind and (row.kind ~= "raised" or e.msg == row.error) end
    ran = ran + 1
    verdict(ok, ("golden %s %s: %s\n  want %s"):format(name, row.id, text or e.kind .. ": " .. tostring(e), want or row.kind .. ": " .. row.error))
  end
end
local list = io.open(shared .. "/templates/README.md")
if list then
  list:close()
  local p = io.popen("ls " .. shared .. "/templates")
  for file in p:lines() do
    if file:find "%.jinja$" then golden(file:match "^(.*)%.jinja$") end
  end
  p:close()
  verdict(ran >= 1086, "too few goldens ran: " .. ran)
end

-- Speed: 200 messages through a template of the usual kind.
do
  local t = template.compile [[{% for m in messages %}{%- if loop.first and m.role != 'system' %}<s>{% endif -%}
{{- '<|' + m['role'] + '|>\n' + (m.content | trim) + '<|end|>\n' }}
{%- if m.tool_calls is defined %}{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}{% endif %}
{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}]]
  local messages = {}
  for i = 1, 200 do messages[i] = { role = i % 2 == 1 and "user" or "assistant", content = ("Some words. "):rep(20) } end
  local best = math.huge
  for _ = 1, 10 do
    local before = os.clock()
    assert(t:render { messages = messages, add_generation_prompt = true })
    best = math.min(best, os.clock() - before)
  end
  print(("200 messages: %.2f ms"):format(best * 1e3))
  verdict(best < (os.getenv "PL_SANITIZED" ~= "" and os.getenv "PL_SANITIZED" and 1 or 0.05), "a rendering takes " .. best .. " s")
end
print(("%d goldens ran"):format(ran))
verdicts.done()
