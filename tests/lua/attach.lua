-- perilune attach: what it shows, what it refuses, what it changes; and hostile input, beside a request that goes on.
-- luacheck: no max line length
local client, attach = dofile "tests/http_client.lua", require "pl.attach"
local abi, json = require "pl.abi", require "pl.json"
local C, e = abi.C, abi.err
local verdicts = dofile "tests/verdicts.lua"
local ok, eq, has = verdicts.ok, verdicts.eq, verdicts.has

local sock = os.tmpname()
os.remove(sock)
sock = sock .. ".sock"
local args = "tests/data/tiny-llama --context 512 --batch 4 --no-log --socket " .. sock
local s = client.serve(args)
local reader, writer = attach.connect(sock), attach.connect(sock, true)
local function ask(text) return reader.call(text, true) end
local function change(text) return writer.call(text, true) end

-- the socket
eq(io.popen("stat -c %a " .. sock):read "*l", "600", "mode")
do
  local out = io.popen(("%s/perilune serve %s --port 0 2>&1"):format(os.getenv "PL_BUILD" or "build", args)):read "*a"
  ok(out:find("another server listens there", 1, true), "a live socket: " .. out)
  eq(io.popen("stat -c %a " .. sock):read "*l", "600", "and it stays")
end

-- a request to look at; paused, so that it stays
local BODY = '{"prompt":"Once upon a time","max_tokens":60,"temperature":0}'
local _, solo = client.call(s.port, "POST", "/v1/completions", BODY)
solo = json.decode(solo).choices[1].text
eq(client.call(s.port, "GET", "/health"), 200, "ready")
ok(change "pause()".ok, "pause")
eq(ask "server().paused".value, true, "paused")
local function health() -- status, live, ready
  local code, text = client.call(s.port, "GET", "/health")
  text = json.decode(text)
  return ("%d %s %s"):format(code, text.live, text.ready)
end
-- what `attach` has said shows once the server's loop has gone round
eq(client.becomes("503 true false", health), "503 true false", "while it is paused")
local c = client.dial(s.port)
c:ask("POST", "/v1/completions", BODY)
local function until_(text, want)
  local r
  for _ = 1, 100 do
    r = ask(text)
    if r.value == want then return true end
    client.sleep(0.05)
  end
  return false, print(r.value, r.error)
end
local function done(text)
  local r = change(text)
  ok(r.ok, text:sub(1, 70) .. ": " .. tostring(r.error))
end
ok(until_("#requests()", 1), "a request")
local q = ask "requests()[1]".value
ok(q.state == "waiting" and q.prompt > 3 and q.out == 0 and q.max_out == 60 and q.name:find "^cmpl%-", "its row")
ok(change "resume()".ok, "resume")
eq(client.becomes("200 true true", health), "200 true true", "resumed")
local status, h = c:head()
eq(status, 200, "it goes on")
eq(json.decode(c:body(h)).choices[1].text, solo, "and is the same")
c:close()

-- what can be asked
ok(ask "metrics().steps".value > 50, "metrics")
ok(type(ask "pages()".value) == "table", "pages")
local page = ask "pages(0, 1)[1]".value
ok(page.page == 0 and page.state and page.tag and page.owners, "a page")
eq(ask "#pages(0, 1e9)".value > 0, true, "all pages")
eq(#ask "incidents()".value, 0, "incidents")
ok(change "trace(10)".ok, "trace")
client.call(s.port, "POST", "/v1/completions", BODY)
ok(#ask "prof()".value > 5, "the trace")
eq(ask "1 + 1".value, 2, "arithmetic")
eq(reader.call "'a', 2, nil, { x = 1 }".text, "a\n2\nnil\nx                    1", "texts")
eq(reader.call "print 'x' return 3".text, "x\n3", "print")
eq(reader.call "'\\27[31m'".text, "\\27[31m", "nothing for a terminal to act on")

-- who reads changes nothing
for _, text in ipairs { "pause()", "resume()", "drain()", "set_policy 'fair'", "cancel(1)", "reload()", "trace(1)",
  "pcall(pause)", "pcall(set_policy, 'fair')" } do
  local r = ask(text)
  ok(not r.ok and r.error:find("perilune attach --write", 1, true) or r.ok and r.value == false, text)
end
eq(ask "server().paused".value, false, "not paused")
eq(ask "policy().name".value, "decode_first", "the policy")

-- who writes
eq(change "set_policy 'fair'".value[1], "policy: fair", "by name")
done("set_policy " .. ("%q"):format("return function(s)\n for r in s:running() do s:decode(r) end\n"
  .. "for r in s:waiting() do s:prefill(r, math.min(r.left, s.tokens.left)) end end"))
client.call(s.port, "POST", "/v1/completions", BODY)
eq(ask "policy().failures".value, 0, "it works")
done("set_policy(function(s) for r in s:running() do s:decode(r) end "
  .. "for r in s:waiting() do s:prefill(r, math.min(r.left, s.tokens.left)) end end)")
local _, again = client.call(s.port, "POST", "/v1/completions", BODY)
eq(json.decode(again).choices[1].text, solo, "the same answer")
eq(ask "policy().failures".value, 0, "it works too")
ok(change "set_policy(function(s) pause() end)".ok, "a policy that wants more")
_, again = client.call(s.port, "POST", "/v1/completions", BODY)
eq(json.decode(again).choices[1].text, solo, "does no harm")
ok(ask "policy().failures".value > 0 and not ask "server().paused".value, "and gets nothing")
has(tostring(ask "policy().why".value), "not within a policy", "the policy's state says why")
done("set_policy(function(s) error 'mine' end)")
ok(type(ask "policy().why".value) ~= "string", "another policy begins anew")
for _ = 1, 4 do client.call(s.port, "POST", "/v1/completions", BODY) end -- of more than 5 steps each
ok(ask "policy().off".value == true, "one that always fails is not asked any more")
has(ask "policy().why".value, "mine", "and why")
done "set_policy 'fair'"
ok(ask "policy().off".value ~= true, "fair is asked")
for _, text in ipairs { "set_policy 'fare'", "set_policy 'return 3'", "set_policy 'return while'", "set_policy {}",
  "set_policy 'return function(s) end while true do end'", "cancel(12345)", "cancel 'x'", "trace(-1)" } do
  ok(not change(text).ok, text)
end
eq(change "set_policy 'decode_first'".ok, true, "back")
change "pause()"
c = client.dial(s.port)
c:ask("POST", "/v1/completions", BODY)
ok(until_("#requests()", 1), "another request")
ok(change "cancel(requests()[1].id)".ok, "cancel")
status = c:head()
eq(status, 500, "it hears so")
c:close()
eq(#ask "requests()".value, 0, "gone")
-- a budget that is hit leaves nothing half done
ok(not change "resume() while true do end".ok, "no end")
eq(ask "server().paused".value, true, "and no change")
change "resume()"

-- hostile texts, beside a stream
c = client.dial(s.port)
c:ask("POST", "/v1/completions", '{"prompt":"Once upon a time","max_tokens":400,"temperature":0,"ignore_eos":true}')
local hostile = { "while true do end", "repeat until pcall(error)", "local s = 'x' while true do s = s .. s end",
  "local t = {} while true do t = { t } end", "local function f() return 1 + f() end return f()",
  "local function f() f() end while true do pcall(f) end", "('x'):rep(1e9)", "('a'):rep(2^20)",
  "coroutine.wrap(function() while true do end end)()", "xpcall(error, function() while true do end end)",
  "setmetatable({}, { __index = function() while true do end end })", "getmetatable('').__index = nil",
  "setmetatable({}, { __tostring = function() while true do end end })", "_G.print = nil", "string.rep = nil",
  "local t = {} t.t = t return t", "local t = {} for i = 1, 1e5 do t[i] = i end return t", "error {}", "error()",
  "return ...", "}{", "\0\1\2", "--[[", "('('):rep(1e5)", "requests().x.y", "pages(-1)", "pages('x')", "pages(2^53)",
  "io.open '/etc/passwd'", "require 'ffi'", "load 'x'", "print(('x'):rep(1e6)) " .. ("print(1) "):rep(1000),
  "return { [setmetatable({}, { __tostring = function() while true do end end })] = 1 }",
  ("("):rep(10000), "return " .. ("{"):rep(1000) .. ("}"):rep(1000) }
for _, text in ipairs(hostile) do
  for _, as_json in ipairs { true, false } do
    local fine, r = pcall(writer.call, text, as_json)
    ok(fine and type(r.ok) == "boolean", "an answer to " .. text:sub(1, 60) .. ": " .. tostring(r))
    ok(not fine or #(r.text or r.error or "") <= 2 ^ 18 + 8, "not too long: " .. text:sub(1, 60))
  end
end
status, h = c:head()
eq(status, 200, "the request beside them")
eq(json.decode(c:body(h)).usage.completion_tokens, 400, "and all of it")
c:close()

-- hostile connections
local function raw(text)
  local fd = abi.new "int32_t[1]"
  abi.check(C.pl_sock_connect(fd, sock, e))
  if text then C.pl_sock_write(fd[0], text, #text) end
  return fd[0]
end
local function answer(fd)
  local buffer, all = abi.new "char[65536]", ""
  for _ = 1, 100 do
    local n = tonumber(C.pl_sock_read(fd, buffer, 65536))
    if n > 0 then all = all .. abi.string(buffer, n) elseif n ~= C.PL_EBUSY then return all, true end
    if all:find "\n" then return all, false end
    client.sleep(0.02)
  end
  return all, false
end
local HELLO = '{"write":false}\n'
do
  local list = {}
  for i = 1, 64 do list[i] = raw(HELLO) end
  local served, refused = 0, 0
  for i = 1, 64 do
    local text = answer(list[i])
    if text:find '"ok":true' then served = served + 1 elseif text:find "connections, want fewer" then refused = refused + 1
    end
  end
  eq(served, 30, "served beside two others")
  eq(refused, 34, "refused")
  for i = 1, 64 do C.pl_sock_close(list[i]) end
  ok(ask "1".ok, "and still there")
end
for _, junk in ipairs { "\0\255\254junk\n", "[]\n", "3\n", "{\n", '{"write":false}\n{"eval":3}\n', ("x"):rep(2000) .. "\n",
  ('{"a":'):rep(500) .. "\n", "GET / HTTP/1.1\r\n\r\n" } do
  local fd = raw(junk)
  answer(fd)
  C.pl_sock_close(fd)
  ok(ask "1".ok, "after junk")
end
do -- half a line, then gone; a client that asks and does not wait; much without an end
  C.pl_sock_close(raw '{"wri')
  for _ = 1, 20 do C.pl_sock_close(raw(HELLO .. '{"eval":"while true do end"}\n{"eval":"pages(0, 1e9)"}\n')) end
  local fd = raw(HELLO)
  local text, sent = ("x"):rep(60000), 0
  for _ = 1, 2000 do
    local n = tonumber(C.pl_sock_write(fd, text, #text))
    if n == C.PL_EBUSY then client.sleep(0.005) elseif n < 0 then break else sent = sent + n end
  end
  ok(sent < 4e6, "a line without an end is cut off: " .. sent)
  C.pl_sock_close(fd)
  local asks = raw(HELLO .. ('{"eval":"pages(0, 2000)"}\n'):rep(200)) -- and reads nothing
  eq(ask "1".value, 1, "beside it")
  C.pl_sock_close(asks)
  eq(ask "2".value, 2, "after all of them")
end
do
  local _, text = client.call(s.port, "POST", "/v1/completions", BODY)
  eq(json.decode(text).choices[1].text, solo, "the same answer as before")
end

-- the command
local function run(more)
  local p = io.popen(("%s/perilune attach %s %s 2>&1; echo $?"):format(os.getenv "PL_BUILD" or "build", sock, more))
  local text = p:read "*a"
  p:close()
  return text
end
eq(run "--eval '1 + 1'", "2\n0\n", "--eval")
eq(run "--json --eval '{ 1, { a = true } }'", '[1,{"a":true}]\n0\n', "--json")
ok(run "--eval 'pause()'":find "want `perilune attach %-%-write`\n1\n$", "read only")
eq(run "--write --eval 'pause() resume()'", "paused\nresumed\n0\n", "--write")
eq(run "< /dev/null", "0\n", "nothing to do")
local policy = os.tmpname()
local function write(text)
  local f = io.open(policy, "w")
  f:write(text)
  f:close()
end
write "return function(s)\n  for r in s:running() do s:decode(r) end\n  for r in s:waiting() do s:prefill(r, math.min(r.left, s.tokens.left)) end\nend"
ok(run("--policy " .. policy):find "%-%-policy: wants %-%-write\n.*\n2\n$", "--policy without --write")
eq(ask "policy().name".value, "decode_first", "nothing has changed")
local failures = ask "policy().failures".value
ok(run("--write --policy " .. policy):find "^policy: .*\n0\n$", "--policy")
ok(ask "policy().name".value ~= "decode_first", "another policy: " .. tostring(ask "policy().name".value))
client.call(s.port, "POST", "/v1/completions", BODY)
eq(ask "policy().failures".value, failures, "it works")
ok(change "reload()".value[1]:find("policy: attached, which attach set, stays, as none is named", 1, true), "a reload tells of it")
local name = ask "policy().name".value
write "return function(s"
ok(run("--write --policy " .. policy):find "\n1\n$", "--policy: no Lua")
ok(run "--write --policy /nonexistent.lua":find "No such file.*\n1\n$", "--policy: no file")
eq(ask "policy().name".value, name, "nothing has changed")
os.remove(policy)

-- paths at which no server is: each is told with the path, and what is wanted
local here = os.tmpname()
os.remove(here)
assert(os.execute("mkdir " .. here) == 0)
local function attached(path, with, before)
  local p = io.popen(("%s %s/perilune attach %s %s </dev/null 2>&1; echo $?"):format(before or "",
    os.getenv "PL_BUILD" or "build", path, with or "--eval 1"))
  local out = p:read "*a"
  p:close()
  return out
end
local function told(path, want, before)
  local out = attached(path, nil, before)
  ok(out:find("perilune: attach: " .. path .. ": " .. want, 1, true) and out:find "\n1\n$", ("%s: %s"):format(want, out))
end
told(here .. "/none.sock", "nothing is there, want the path that a running server prints")
do
  local out = attached("", "--port 1 --eval 1")
  ok(out:find "attach: [^\n]*/perilune%-1.sock: nothing is there, want %-%-port N, a socket, or a deployment file\n"
    and out:find "\n1\n$", "--port: " .. out)
end
told(here, "not a socket, want the path that the server prints")
os.execute("echo >" .. here .. "/file")
told(here .. "/file", "not a socket")
told(here .. "/file/x", "nothing is there")
told(here .. "/" .. ("x"):rep(120), "socket: a path of")
if os.execute "setpriv --reuid 65534 true 2>/dev/null" == 0
  and os.execute("setpriv --reuid 65534 test -x " .. (os.getenv "PL_BUILD" or "build") .. "/perilune") == 0 then
  told(sock, "permission refused, want the user who runs the server", "setpriv --reuid 65534")
end
for field, want in pairs { ['socket = "none"'] = 'socket = "none": its server has no socket',
  ["port = 0"] = "port = 0: want the socket, whose path the server prints" } do
  local deploy = io.open(here .. "/d.lua", "w")
  deploy:write('return { model = "tests/data/tiny-llama", ', field, " }\n")
  deploy:close()
  told(here .. "/d.lua", want)
end
do -- what listens there says something else, nothing, or goes in the middle
  local path, listener = here .. "/perilune-77.sock", abi.new "int32_t[1]"
  local out = here .. "/out"
  abi.check(C.pl_sock_listen(listener, path, e))
  local function against(answers, want)
    os.execute(("(%s/perilune attach %s --eval 1 >%s 2>&1; echo $? >>%s; mv %s %s.done) </dev/null &"):format(
      os.getenv "PL_BUILD" or "build", path, out, out, out, out))
    local fd = C.PL_EBUSY
    for _ = 1, 500 do
      fd = C.pl_sock_accept(listener[0])
      if fd >= 0 then break end
      client.sleep(0.02)
    end
    for _, text in ipairs(answers) do
      client.sleep(0.05)
      C.pl_sock_write(fd, text, #text)
    end
    C.pl_sock_close(fd)
    local said = ""
    for _ = 1, 500 do
      local f = io.open(out .. ".done")
      if f then
        said = f:read "*a"
        f:close()
        os.remove(out .. ".done")
        break
      end
      client.sleep(0.02)
    end
    ok(said:find(("perilune: attach: %s: %s"):format(path, want), 1, true) and said:find "\n1\n$", ("%s: %s"):format(want, said))
  end
  local out_of = attached("", "--port 1 --eval 1", "XDG_RUNTIME_DIR=" .. here)
  ok(out_of:find("servers listen at " .. path .. "\n", 1, true), "the sockets of servers: " .. out_of)
  C.pl_sock_close(C.pl_sock_accept(listener[0]))
  local hello = '{"ok":true,"model":"m","version":"1","help":"h","write":false}\n'
  against({}, "it was closed at once")
  against({ "HTTP/1.1 400 Bad Request\r\n\r\n" }, "no perilune listens there")
  against({ '{"ok":true}\n' }, "no perilune listens there")
  against({ '{"ok":false,"error":"32 connections, want fewer"}\n' }, "refused: 32 connections, want fewer")
  against({ hello }, "the server went away without an answer")
  against({ hello, '{"ok":tr' }, "the server went away without an answer")
  C.pl_sock_close(listener[0])
  told(path, "nobody listens there any more: its server has ended, start it again")
end
os.execute("rm -r " .. here)
ok(attached(sock, "", "printf 'quit\\n1 + 1\\n' |") == "0\n", "quit leaves")

-- drain ends it, and takes the socket away; one that is left behind makes way
ok(change "drain()".ok, "drain")
eq(s.wait(), 0, "exit")
ok(os.rename(sock, sock) == nil, "the socket is gone")
s = client.serve(args)
s.signal(9)
s.wait()
ok(os.rename(sock, sock), "it is left")
ok(io.popen(("%s/perilune attach %s 2>&1"):format(os.getenv "PL_BUILD" or "build", sock)):read "*a"
  :find("nobody listens there any more", 1, true), "killed")
s = client.serve(args)
ok(attach.connect(sock).call("1", true).value == 1, "and taken")
s.signal(15)
eq(s.wait(), 0, "exit")

verdicts.done()
