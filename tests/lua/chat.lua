-- perilune chat: turns from a pipe with a model and with a server, what goes wrong, and a terminal: Ctrl-C, the editor,
-- and control codes in an answer.
-- luacheck: no max line length
local cjson, client, ffi = require "cjson", dofile "tests/http_client.lua", require "ffi"
local pl, talk = require "pl", require "pl.talk"
ffi.cdef [[
int bind(int, const void *, unsigned); int listen(int, int); int accept(int, void *, void *);
int getsockname(int, void *, unsigned *); uint16_t ntohs(uint16_t);
int forkpty(int *, char *, void *, void *); int execvp(const char *, const char *const *); int waitpid(int, int *, int);
long read(int, void *, size_t); long write(int, const void *, size_t); void _exit(int);
]]
local perilune = (os.getenv "PL_BUILD" or "build") .. "/perilune"
local verdicts = dofile "tests/verdicts.lua"
local ok, eq, has = verdicts.ok, verdicts.eq, verdicts.has
local function temp(text)
  local path = os.tmpname()
  local f = assert(io.open(path, "wb"))
  f:write(text or "")
  f:close()
  return path
end
local function read(path)
  local f = io.open(path, "rb")
  local s = f and f:read "*a" or ""
  if f then f:close() end
  return s
end

-- A chat with these lines: { pid, out(), said(), wait() = exit code }; the last takes its files away.
local function start(args, lines)
  local base = temp(lines)
  os.execute(("(%s chat %s <%s >%s.out 2>%s.err & p=$!; echo $p >%s.pid; wait $p; echo $? >%s.code) >/dev/null 2>&1 &")
    :format(perilune, args, base, base, base, base, base))
  local c = {}
  local function until_(f)
    for _ = 1, 600 do
      local v = f()
      if v then return v end
      client.sleep(0.02)
    end
  end
  function c.out() return read(base .. ".out") end
  function c.said() return read(base .. ".err") end
  c.pid = until_(function() return tonumber(read(base .. ".pid")) end)
  function c.until_out(part) return until_(function() return c.out():find(part, 1, true) end) end
  function c.until_said(part) return until_(function() return c.said():find(part, 1, true) end) end
  function c.wait()
    c.code = until_(function() return tonumber(read(base .. ".code")) end)
    local out, said = c.out(), c.said()
    os.execute(("rm -f %s %s.*"):format(base, base))
    return c.code, out, said
  end
  return c
end
local function chat(args, lines) return start(args, lines).wait() end
local function rows(text)
  local list = {}
  for line in text:gmatch "[^\n]+" do list[#list + 1] = cjson.decode(line) end
  return list
end

-- the tiny model with a template
local dir = client.templated [[{%- for m in messages -%}
{%- if m.content == "Raise" -%}{{ raise_exception("not this") }}{%- endif -%}
<{{ m.role }}>{{ m.content }}
{% endfor -%}
{%- if add_generation_prompt -%}<assistant>{%- endif -%}]]
local m = pl.load(dir, { batch = 1, context = 512 })
local FIRST = "Hello there, how many apples are in a box of twelve if three of them are gone and a hungry child is near?"
local function solo(messages)
  return m:generate { ids = m:tokenizer():encode(m:render { messages = messages }, { specials = true }), max_tokens = 8 }
end
local function user(text) return { role = "user", content = text } end
local function said(text) return { role = "assistant", content = text } end

-- turns from a pipe
local one, two, three
do
  local brief, again = { role = "system", content = "Be brief." }, { role = "system", content = "Be long." }
  one = solo { brief, user(FIRST) }
  two = solo { brief, user(FIRST), said(one.text), user "And of ten?" }
  three = solo { again, user(FIRST), said(one.text), user "And of ten?", said(two.text), user " /reset" }
  local fresh = solo { user "Hello" }
  local lines = FIRST .. "\n\nAnd of ten?\n/system Be long.\n /reset\n/reset\n/system\nHello"
  local args = dir .. " --context 512 --max-tokens 8 --system 'Be brief.' "
  local code, out = chat(args .. "--json", lines)
  local r = rows(out)
  eq(code, 0, "pipe: exit")
  eq(#r, 4, "pipe: turns")
  for i, want in ipairs { one, two, three, fresh } do
    eq(r[i].text, want.text, ("pipe: turn %d"):format(i))
    eq(r[i].prompt_tokens, want.prompt_tokens, "pipe: tokens")
    eq(r[i].completion_tokens, #want.ids, "pipe: tokens of the answer")
  end
  eq(r[1].cached_tokens, 0, "pipe: nothing is cached at first")
  ok(r[2].cached_tokens >= 64, "pipe: the second turn finds the first one in the cache")
  local _, plain, notes = chat(args, lines)
  eq(plain, ("%s\n%s\n%s\n%s\n"):format(one.text, two.text, three.text, fresh.text), "pipe: plain")
  has(notes, "cut off after 8 tokens (--max-tokens)", "pipe: a short answer")
end

-- what goes wrong leaves the conversation as it was
do
  local long = ("x y z "):rep(300)
  local code, out, notes = chat(dir .. " --context 512 --max-tokens 8", ("%s\n%s\nRaise\n/rset\n/usr/bin\nAnd of ten?\n")
    :format(FIRST, long))
  local first = solo { user(FIRST) }
  local path = solo { user(FIRST), said(first.text), user "/usr/bin" }
  local last = solo { user(FIRST), said(first.text), user "/usr/bin", said(path.text), user "And of ten?" }
  eq(out, ("%s\n%s\n%s\n"):format(first.text, path.text, last.text), "errors: the conversation")
  eq(code, 1, "errors: exit")
  ok(notes:find "the conversation has %d+ tokens, the context holds 512", "errors: too long: " .. notes)
  has(notes, "not this", "errors: the template's")
  has(notes, "no command /rset", "errors: a command")
  local r = rows(select(2, chat(dir .. " --context 512 --json", "Raise\n")))
  has(r[1].error, "not this", "errors: JSON")
  local full = rows(select(2, chat(dir .. " --context 96 --json --repetition-penalty 0.5", FIRST .. "\n")))[1]
  eq(full.finish_reason, "length", "errors: the context is full")
  eq(full.prompt_tokens + full.completion_tokens, 96, "errors: to the last token")
  local function fails(args, want_code, want)
    local got, _, why = chat(args, "Hello\n")
    eq(got, want_code, args .. ": exit")
    has(why, want, args)
  end
  fails("", 2, "want one of MODEL and --url")
  fails(dir .. " --url http://x", 2, "want one of MODEL and --url")
  fails("tests/data/tiny-llama", 1, "has no chat template")
  fails("--url ftp://x", 2, "--url: 'ftp://x', want http://HOST:PORT")
  fails("--url http://127.0.0.1:1 --name x --json", 1, "")
  local p = io.popen(("echo Hello | %s chat %s --max-tokens 1 2>&1 >/dev/full; echo $?"):format(perilune, dir))
  local why = p:read "*a"
  ok(why:find("standard output", 1, true) and why:find "\n1\n$", "output that cannot be written: " .. why)
  p:close()
end

-- from Lua
do
  local t = m:talk { max_tokens = 8 }
  local pieces = {}
  local r = t:say(FIRST, function(s) pieces[#pieces + 1] = s end)
  eq(tostring(r), solo({ user(FIRST) }).text, "Lua: a turn")
  eq(table.concat(pieces), r.text, "Lua: pieces")
  eq(#t.messages, 2, "Lua: messages")
  ok(not pcall(t.say, t, "Raise"), "Lua: an error")
  eq(#t.messages, 2, "Lua: messages, as they were")
  t:reset()
  eq(tostring(t), ("a conversation with %s: 0 turns"):format(dir:match "[^/]*$"), "Lua: text")
  local clean = talk.harmless()
  eq(clean "a\27[31m\tb\r\n\194" .. clean "\155c\194" .. clean "\169d\7\127", "a\239\191\189[31m\tb\n\239\191\189c\194\169d\239\191\189\239\191\189",
    "what a terminal would act on")
end

-- Ctrl-C ends an answer of a model, and no more than that
do
  local c = start(dir .. " --repetition-penalty 0.5", "Hello there, how many apples?\nAnd of ten?\n")
  ok(c.until_out " ", "Ctrl-C: an answer begins")
  ffi.C.kill(c.pid, 2)
  ok(c.until_said "stopped", "Ctrl-C: it ends")
  client.sleep(0.1)
  ffi.C.kill(c.pid, 2)
  local code, _, notes = c.wait()
  eq(code, 0, "Ctrl-C: the session goes on")
  eq(select(2, notes:gsub("stopped", "")), 2, "Ctrl-C: so does the second: " .. notes)
end

-- a server: the same answers as the model's own
local key, keys = temp "sesame-open\n", temp "sesame-open tenant\n"
do
  local s = client.serve(dir .. " --context 512 --batch 2 --no-log --name t --keys " .. keys)
  local url = ("--url http://127.0.0.1:%d --temperature 0 --max-tokens 8 --json"):format(s.port)
  local code, out = chat(url .. " --key-file " .. key .. " --system 'Be brief.'", FIRST .. "\nRaise\n" .. ("x y z "):rep(300)
    .. "\nAnd of ten?\n")
  local r = rows(out)
  eq(code, 1, "server: exit")
  eq(r[1].text, one.text, "server: turn 1")
  eq(r[1].prompt_tokens, one.prompt_tokens, "server: tokens")
  ok(r[2].error:find("status 400", 1, true) and r[2].error:find("not this", 1, true), "server: the template's error")
  ok(r[3].error:find("the context holds 512 tokens", 1, true), "server: too long: " .. tostring(r[3].error))
  eq(r[4].text, two.text, "server: turn 2")
  ok(r[4].cached_tokens >= 64, "server: from the cache")
  local _, _, notes = chat(url .. " --key-file " .. keys, "Hello\n")
  has(notes, "want one line", "server: no key in the file")
  code, _, notes = chat(url, "Hello\n")
  eq(code, 1, "server: no key: exit")
  has(notes, "status 401", "server: no key")
  s.signal(9)
  s.wait()
end

-- A server of the test's own: what it sends is what the test says.
local lfd = ffi.C.socket(2, 1, 0)
local address, length = ffi.new("struct test_in", { family = 2, address = ffi.C.htonl(0x7f000001) }), ffi.new("unsigned[1]", 16)
assert(ffi.C.bind(lfd, address, 16) == 0 and ffi.C.listen(lfd, 8) == 0)
ffi.C.getsockname(lfd, address, length)
local url = ("--url http://127.0.0.1:%d --name x"):format(ffi.C.ntohs(address.port))
local Conn = getmetatable(assert(client.dial(ffi.C.ntohs(address.port)))).__index
ffi.C.close(ffi.C.accept(lfd, nil, nil))
local buffer = ffi.new "char[65536]"
-- The next request: a connection, and its body.
local function take()
  local p = ffi.new("struct test_poll[1]", { { fd = lfd, events = 1 } })
  assert(ffi.C.poll(p, 1, 20000) == 1, "nobody connects")
  local c = setmetatable({ fd = ffi.C.accept(lfd, nil, nil), held = "" }, { __index = Conn })
  local head = c:until_ "\r\n\r\n"
  return c, cjson.decode(c:bytes(tonumber(head:lower():match "content%-length: (%d+)")))
end
local STREAM = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
local function delta(text) return ('data: {"choices":[{"delta":{"content":%s}}]}\n\n'):format(cjson.encode(text)) end
local function answer(c, text)
  c:send(STREAM .. delta(text) .. 'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n')
  c:close()
end

do
  local c = start(url .. " --seed 7", "one\ntwo\nthree\nfour\nfive\nsix\n")
  local s, q = take()
  ok(q.model == "x" and q.stream == true and q.seed == 7 and not q.temperature and not q.max_tokens, "asked: what was given, and no more")
  s:send(STREAM .. delta "Half an") -- goes away in the middle
  s:close()
  s, q = take()
  eq(#q.messages, 1, "a failed turn is none")
  s:send(STREAM .. delta "Half" .. 'data: {"error":{"message":"out of\\u001b[31m luck"}}\n\n')
  s:close()
  s = take()
  s:send "HTTP/1.1 503 Busy\r\nContent-Length: 10\r\nConnection: close\r\n\r\nnot\27[1mnow"
  s:close()
  s = take()
  s:send(STREAM .. "data: {oops\n\n")
  s:close()
  s = take()
  answer(s, "Fine\27.")
  s, q = take()
  eq(q.messages[2].content, "Fine\27.", "the conversation is as it was said")
  answer(s, "Yes")
  local code, out, notes = c.wait()
  eq(code, 1, "a bad server: exit")
  eq(out, "Half an\nHalf\nFine\27.\nYes\n", "a bad server: what was said; a pipe gets it as it is")
  has(notes, "the stream ended before the answer did", "a server that goes away")
  has(notes, "out of\\27[31m luck", "an error in the stream")
  has(notes, "status 503: not\\27[1mnow", "an error that is not JSON")
  has(notes, "an event that is not JSON", "an event that is not JSON")
end

-- JSON is UTF-8, whatever a server sends
do
  local c = start(url .. " --json", "one\n")
  local s = take()
  s:send(STREAM .. 'data: {"choices":[{"delta":{"content":"a\255\192\175\237\160\128 \195\182\240\159\166"}}]}\n\ndata: [DONE]\n\n')
  s:close()
  local code, out = c.wait()
  local R = "\239\191\189"
  eq(code, 0, "not UTF-8: exit")
  has(out, '"text":"a' .. R:rep(6) .. " \195\182" .. R:rep(3) .. '"', "not UTF-8: the line is")
  local json = require "pl.json"
  for text, want in pairs { [""] = "", abc = "abc", ["\195\182"] = "\195\182", ["\195"] = R, ["\128x\128"] = R .. "x" .. R,
    ["\224\128\128"] = R:rep(3), ["\224\160\128"] = "\224\160\128", ["\244\144\128\128"] = R:rep(4),
    ["\244\143\191\191"] = "\244\143\191\191", ["\240\143\191\191"] = R:rep(4), ["\238\128\128"] = "\238\128\128",
    ["\239\191\191\255"] = "\239\191\191" .. R, ["a\0\195\40"] = "a\0" .. R .. "(" } do
    eq(json.utf8(text), want, ("UTF-8 of %q"):format(text))
  end
end

-- a terminal
local home = os.tmpname()
os.remove(home)
os.execute("mkdir " .. home)
-- talk(types, expect) at a terminal of its own; returns how the chat ended and what it showed
local function terminal(conversation)
  local argv = { "env", "XDG_STATE_HOME=" .. home, "TERM=xterm", perilune, "chat" }
  for word in url:gmatch "%S+" do argv[#argv + 1] = word end
  local n = #argv
  local array, fd = ffi.new("const char *[?]", n + 1), ffi.new "int[1]"
  for i = 1, n do array[i - 1] = argv[i] end
  local pid = ffi.C.forkpty(fd, nil, nil, nil)
  if pid == 0 then
    ffi.C.execvp("env", array)
    ffi.C._exit(127)
  end
  local guard = ffi.gc(ffi.new "char[1]", function() ffi.C.kill(pid, 9) end)
  local shown, at = "", 1
  local function expect(part)
    while true do
      local a, b = shown:find(part, at, true)
      if a then
        at = b + 1
        return ok(true)
      end
      local p = ffi.new("struct test_poll[1]", { { fd = fd[0], events = 1 } })
      local got = ffi.C.poll(p, 1, 10000) > 0 and tonumber(ffi.C.read(fd[0], buffer, 65536)) or -1
      if got <= 0 then return ok(false, ("a terminal: no %s in %q"):format(part, shown:sub(at))) end
      shown = shown .. ffi.string(buffer, got)
    end
  end
  conversation(function(s) ffi.C.write(fd[0], s, #s) end, expect)
  local status = ffi.new "int[1]"
  for _ = 1, 200 do
    if ffi.C.waitpid(pid, status, 1) == pid then
      ffi.gc(guard, nil)
      break
    end
    ffi.C.read(fd[0], buffer, 65536)
  end
  return status[0], shown
end
do
  local status, shown = terminal(function(types, expect)
    expect "leaves\r\n"
    expect "> "
    types "/help\n"
    expect "A text that begins with /"
    expect "> "
    types "How are y\195\182u?\n"
    local s, q = take()
    eq(q.messages[1].content, "How are y\195\182u?", "a terminal: UTF-8")
    s:send(STREAM .. delta "Well \27[31m\7 and \194\155")
    expect "Well \239\191\189[31m\239\191\189 and \239\191\189"
    types "\3"
    expect "stopped"
    eq(s:more(5), false, "a terminal: the server hears of Ctrl-C")
    s:close()
    expect "> "
    types "half of it\3"
    expect "leaves\r\n> "
    types "two\\\n"
    expect ">> "
    types "lines\n"
    s, q = take()
    eq(#q.messages, 3, "a terminal: a stopped answer stays")
    eq(q.messages[3].content, "two\nlines", "a terminal: two lines")
    answer(s, "End")
    expect "End\r\n"
    expect "> "
    types "\3"
    expect "leaves\r\n"
    expect "> "
    types "\3"
  end)
  eq(status, 0, "a terminal: the second Ctrl-C at the prompt leaves")
  local history = read(home .. "/perilune/chat_history")
  ok(history:find "How" and history:find "lines", "a terminal: history: " .. history)
  ok(not shown:find "\27%[31m" and not shown:find "\7", "a terminal: nothing to act on")
  for _, word in ipairs { "quit", "exit", "/quit" } do
    status = terminal(function(types, expect)
      expect "> "
      types(word .. "\n")
    end)
    eq(status, 0, "a terminal: " .. word .. " leaves")
  end
end

m:close()
os.remove(key)
os.remove(keys)
os.execute(("rm -r %s %s"):format(dir, home))
verdicts.done()
