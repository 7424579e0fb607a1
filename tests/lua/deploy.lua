-- Deployment files: golden texts of errors, settings, what a reload changes and what not, options that override.
-- luacheck: no max line length
local deploy, err = require "pl.deploy", require "pl.err"
local verdicts = dofile "tests/verdicts.lua"
local ok, eq = verdicts.ok, verdicts.eq

-- errors: { text, what is said }
local wrong = {
  { "return {\n  model = 'x',\n  prt = 80,\n}",
    "d.lua:3: no field 'prt', did you mean 'port'?\n     3 |   prt = 80,\n         known: access_log address chat_template "
    .. "integrity keys limits model name path policy pools port ..." },
  { "return {\n  model = 'x',\n  pools = {\n    all = {\n      kv = 'fp9' } } }",
    "d.lua:5: pools.all.kv: 'fp9', want one of bf16 f32 fp8\n     5 |       kv = 'fp9' } } }" },
  { "return { model = 'x',\n  -- batch = 3\n  pools = { all = { note = [[\nbatch = 4 ]] and nil,\n  batch = 0 } } }",
    "d.lua:5: pools.all.batch: 0, want a whole number of at least 1\n     5 |   batch = 0 } } }" },
  { "return {\n  port = '80', model = 'x' }",
    "d.lua:2: port: '80', want a whole number of at least 0" .. "\n     2 |   port = '80', model = 'x' }" },
  { "return {\n  limits = 3, model = 'x' }",
    "d.lua:2: limits: 3, want a table\n     2 |   limits = 3, model = 'x' }" },
  { "return {\n  tls = { cert = 'c' }, model = 'x' }",
    "d.lua:2: tls: want both cert and key\n     2 |   tls = { cert = 'c' }, model = 'x' }" },
  { "return {\n}", "d.lua:1: no 'model': a GGUF file or a Hugging Face directory\n     1 | return {\n         or 'recipe' and 'weights'" },
  { "return {\n recipe = 'llama' }", "d.lua:1: no 'model': a GGUF file or a Hugging Face directory\n     1 | return {\n         or 'recipe' and 'weights'" },
  { "return 3", "d.lua:1: a deployment file returns a table, not 3\n     1 | return 3" },
  { "return {\n  model = 'x', pools = { a = {},\n b = {} } }",
    "d.lua:3: pools: a, b: one pool is served by a process\n     3 |  b = {} } }\n         prompts in one pool and answers in another are not there yet" },
  { "return {\n  name = '', model = 'x' }", "d.lua:2: name: an empty text\n     2 |   name = '', model = 'x' }" },
  { "return { model = 'x', tls = { cert = '', key = 'k' } }", "d.lua:1: tls.cert: an empty text\n     1 | return { model = 'x', tls = { cert = '', key = 'k' } }" },
  { "return {\n  tenants = { bob = { share = 'big' } }, model = 'x' }",
    "d.lua:2: tenants.bob.share: 'big', want a number from 0.001 to 1e+06\n"
    .. "     2 |   tenants = { bob = { share = 'big' } }, model = 'x' }" },
  { "return { model = 'x', 5 }", "d.lua:1: no field '1'\n     1 | return { model = 'x', 5 }\n         known: access_log "
    .. "address chat_template integrity keys limits model name path policy pools port ..." },
  { "return setmetatable({ model = 'x' }, {})", "d.lua:1: d.lua has no 'setmetatable'\n"
    .. "     1 | return setmetatable({ model = 'x' }, {})\n         a deployment file is data: it has gb mb k env" },
  { "os.exit(3)", "d.lua:1: d.lua has no 'os'\n     1 | os.exit(3)\n"
    .. "         a deployment file is data: it has gb mb k env" },
  { "x = 1", "d.lua:1: a deployment file sets no globals: make 'x' local\n     1 | x = 1" },
  { "return { model = env 'PL_NO_SUCH_VARIABLE' }",
    "d.lua:1: env: no variable 'PL_NO_SUCH_VARIABLE'\n     1 | return { model = env 'PL_NO_SUCH_VARIABLE' }" },
  { "while true do end", "d.lua:1: the deployment file ran for more than 1e+06 instructions\n     1 | while true do end" },
  { "return { model = ('x'):rep(1e9) }", "d.lua:1: rep: 1 bytes 1e+09 times, want at most 1048576 bytes in all\n"
    .. "     1 | return { model = ('x'):rep(1e9) }" },
  { "return { model = }", "d.lua:1: unexpected symbol near '}'\n     1 | return { model = }" },
  { "\27LJ", "d.lua: bytecode, want a text" },
}
for _, case in ipairs(wrong) do
  local fine, e = pcall(deploy.read_text, case[1], "d.lua")
  ok(not fine and err.is(e), "an error object: " .. case[1])
  eq(tostring(e), case[2], case[1])
end
do -- all that a string can grow to within the memory budget
  local fine, e = pcall(deploy.read_text, "local s = 'x' while true do s = s .. s end", "d.lua")
  ok(not fine and tostring(e):find "more than 16 MB", "memory: " .. tostring(e))
end

-- settings
local d = deploy.read_text([[
local half = gb / 2
return { model = "m.gguf", keys = "/etc/keys", policy = "p.lua", port = 9000,
  pools = { all = { batch = 4, context = 2 * k, kv = "fp8", kv_scales = "s.json" } },
  tiers = { host_cache_bytes = half, disk_cache = "cache", disk_cache_bytes = 10 * mb },
  limits = { body_bytes = mb, connections = 7, headers_s = 3 }, integrity = { check = "off" }, access_log = "a.log" }
]], "some/where/d.lua")
local s = deploy.settings(d)
eq(s.model, "some/where/m.gguf", "a relative path")
eq(s.keys, "/etc/keys", "an absolute path")
eq(s.policy, "some/where/p.lua", "a policy's file")
eq(s.access_log, "some/where/a.log", "a log")
eq(s.context, 2048, "context")
eq(s.load.batch, 4, "batch")
eq(s.load.kv_scales, "some/where/s.json", "scales")
eq(s.load.host_cache_bytes, 2 ^ 29, "host cache")
eq(s.load.disk_cache, "some/where/cache", "disk cache")
eq(s.http.body_bytes, 2 ^ 20, "body")
eq(s.http.max_connections, 7, "connections")
eq(s.http.header_s, 3, "header time")
eq(s.dir, "some/where/", "directory")
local named = deploy.settings(deploy.read_text("return { model = 'x', policy = 'fair' }", "a/d.lua"))
eq(named.policy, "fair", "a policy's name is no path")
for text, want in pairs { ["'none'"] = false, ["'s.sock'"] = "a/s.sock" } do
  eq(deploy.settings(deploy.read_text("return { model = 'x', socket = " .. text .. " }", "a/d.lua")).socket, want, text)
end
eq(named.socket, nil, "a socket of its own choice")

-- what can change
do
  local old = { model = "m", port = 1, keys = "a", limits = { drain_s = 3, idle_s = 4 }, pools = { all = { batch = 2 } } }
  local new = { model = "n", port = 1, keys = "b", limits = { drain_s = 5, idle_s = 6 }, tenants = { x = { share = 2 } },
    pools = { all = { batch = 3 } } }
  local now, later = deploy.changes(old, new)
  eq(table.concat(now, " "), "keys limits.drain_s tenants.x.share", "live")
  eq(table.concat(later, " "), "limits.idle_s model pools.all.batch", "restart")
  now, later = deploy.changes(old, new)
  eq(#now, 0, "taken over")
  eq(#later, 3, "still to come")
end

-- the example
do
  local f = io.open "recipes/deploy/smollm2.lua"
  local text = f:read "*a"
  f:close()
  text = text:gsub('env "MODEL"', '"tests/data/tiny-llama"')
  -- its commented fields are fields too
  local all = text:gsub("\n%s*%-%- ([%a_]+ = .-,)", "\n %1"):gsub("%-%- (disk_cache = [^\n]*)", "%1")
  ok(pcall(deploy.read_text, text, "e.lua"), "the example")
  local fine, e = pcall(deploy.read_text, all, "e.lua")
  ok(fine, "the example, with all fields: " .. tostring(e))
end

-- check reads the files that it names
do
  local dir = os.tmpname()
  os.remove(dir)
  os.execute("mkdir " .. dir)
  local here = io.popen("pwd"):read "*l"
  local files = dofile "tests/files.lua"
  local function check(more, want)
    files.write(dir .. "/d.lua", ([[return { model = "%s/tests/data/tiny-llama", %s }]]):format(here, more))
    local p = io.popen(("%s/perilune check %s/d.lua 2>&1; echo $?"):format(os.getenv "PL_BUILD" or "build", dir))
    local text = p:read "*a"
    p:close()
    ok(text:find(want, 1, true) and text:find(text:find ": fine" and "\n0\n$" or "\n1\n$"), more .. ": " .. text)
  end
  check("", ": fine")
  check("keys = 'keys'", dir .. "/keys: No such file")
  check("weights = 'w.gguf'", "is no recipe: want one of both")
  files.write(dir .. "/keys", "# nobody\n")
  check("keys = 'keys'", "keys: none")
  files.write(dir .. "/keys", "a-long-key alice\nshort bob\n")
  check("keys = 'keys'", "keys: line 2, want a key of 8")
  check("keys = 'keys'", dir .. "/keys")
  files.write(dir .. "/keys", "a-long-key alice\n")
  check("keys = 'keys'", ": fine")
  check("keys = 'keys', tls = { cert = 'keys', key = 'k' }", dir .. "/keys: no certificate in PEM format")
  check("chat_template = 't.jinja'", dir .. "/t.jinja: No such file")
  check("pools = { all = { kv = 'fp8', kv_scales = 's.json' } }", dir .. "/s.json: No such file")
  check("pools = { all = { kv = 'fp8' } }", "an fp8 cache with a scale per tensor has no scales")
  check("pools = { all = { kv = 'fp8', kv_scale = 'token' } }", ": fine")
  check("pools = { all = { cache_bytes = 1 } }", "cache: 1 bytes, want at least")
  check("pools = { all = { context = 99999 } }", "context: 99999 tokens, the model was made for at most 1024")
  check("address = 'localhost'", "address: 'localhost', want a numeric one")
  check("address = '::1'", ": fine")
  check("access_log = 'none/log'", "access_log: " .. dir .. "/none: No such file")
  check("access_log = 'log'", ": fine")
  check("socket = 'none/s.sock'", "socket: " .. dir .. "/none: No such file")
  check("socket = 'none'", ": fine")
  check("tiers = { disk_cache = 'none', disk_cache_bytes = 1000000 }", "disk_cache: " .. dir .. "/none: No such file")
  check("policy = 'p.lua'", "no policy '" .. dir .. "/p.lua'")
  -- a recipe and weights in place of a model
  files.write(dir .. "/d.lua", ([[return { recipe = "llama", weights = "%s/tests/data/tiny-llama" }]]):format(here))
  for _, verb in ipairs { "check", "plan" } do
    local p = io.popen(("%s/perilune %s %s/d.lua 2>&1; echo $?"):format(os.getenv "PL_BUILD" or "build", verb, dir))
    local said = p:read "*a"
    p:close()
    ok(said:find "llama" and said:find "\n0\n$", "a recipe and weights: " .. said)
  end
  -- the pool that it names is the one that is served
  files.write(dir .. "/r.lua", files.read "recipes/llama.lua":gsub("pools = (%b{})", function(t)
    return "pools = { a = pl.pool { batch = 3, weights = { rest = 'stored' } }, " .. t:match "^{(.*)}$":gsub("all =", "z =") .. " }"
  end) .. "")
  check("recipe = 'r.lua', pools = { a = { queue = 9 } }", "pool 'a', bf16 cache, 3 requests")
  check("recipe = 'r.lua', pools = { z = { queue = 9 } }", "pool 'z', bf16 cache, 16 requests")
  check("recipe = 'r.lua', pools = { y = { queue = 9 } }", "recipe.pools has no 'y'")
  check("recipe = 'r.lua', pools = { z = {}, a = {} }", "pools: a, z: one pool is served by a process")
  os.execute("rm -r " .. dir)
end

-- a server: options over the file, tiers and integrity in the engine, reload by SIGHUP
local client = dofile "tests/http_client.lua"
local dir = os.tmpname()
os.remove(dir)
os.execute("mkdir " .. dir)
local here = io.popen("pwd"):read "*l"
local function write(name, text)
  local f = assert(io.open(dir .. "/" .. name, "w"))
  f:write(text)
  f:close()
end
local function file(more)
  write("d.lua", ([[return { model = "%s/tests/data/tiny-llama", port = 1, keys = "keys",
  pools = { all = { batch = 4, context = 256 } }, tiers = { host_cache_bytes = mb },
  integrity = { check = "pages+digest" }, socket = "s.sock", %s }]]):format(here, more))
end
write("keys", "first-key-1 alice\n")
file "policy = 'fair', tenants = { alice = { share = 2 } }"
local server = client.serve(dir .. "/d.lua --batch 3")
ok(server.log():find("--port 0 overrides port = 1 of " .. dir .. "/d.lua", 1, true), "port: " .. server.log())
ok(server.log():find("--batch 3 overrides pools.*.batch = 4", 1, true), "batch")
local attach = require "pl.attach"
local c = attach.connect(dir .. "/s.sock", true)
local function ask(text) return c.call(text, true) end
eq(ask "server().batch".value, 3, "batch in the engine")
eq(ask "policy().name".value, "fair", "policy")
local function post(key)
  return client.call(server.port, "POST", "/v1/completions", '{"prompt":"The","max_tokens":3}',
    "Authorization: Bearer " .. key .. "\r\n")
end
eq(post "first-key-1", 200, "a key")
eq(post "other-key-2", 401, "no key")
local _, metrics = client.call(server.port, "GET", "/metrics", nil, "Authorization: Bearer first-key-1\r\n")
ok(tonumber(metrics:match "perilune_tier_host_capacity_pages{[^}]*} (%d+)") > 0, "a tier")
local function log_says(text)
  for _ = 1, 100 do
    if server.log():find(text, 1, true) then return true end
    client.sleep(0.05)
  end
  return false, print(server.log())
end
write("keys", "other-key-2 bob\n")
file "policy = 'decode_first', name = 'other', limits = { drain_s = 4 }"
server.signal(1)
ok(log_says "reload: changed: limits.drain_s policy tenants.alice.share", "changed")
ok(log_says "reload: needs a restart: name", "restart")
eq(ask "policy().name".value, "decode_first", "another policy")
eq(post "first-key-1", 401, "a key that is gone")
eq(post "other-key-2", 200, "a new key")
-- what attach set gives way to what the file says, and this is told
local own = "return function(s) for r in s:running() do s:decode(r) end for r in s:waiting() do s:prefill(r, r.left) end end"
eq(ask(("set_policy(%q)"):format(own)).ok, true, "a policy by attach")
eq(ask "policy().name".value, "attached", "its name")
local told = ask "reload()".value
eq(told and told[1]:match "policy: [^\n]*", "policy: attached, which attach set, gives way to decode_first", "reload says so")
eq(ask "policy().name".value, "decode_first", "the file's policy")
ok(not table.concat(ask "reload()".value, " "):find "attach", "and only once")
file "policy = 'fare'"
local r = ask "reload()"
ok(not r.ok and r.error:find("reload: nothing has changed", 1, true) and r.error:find("did you mean 'fair'", 1, true),
  "a wrong policy: " .. tostring(r.error))
file "polcy = 'fair'"
server.signal(1)
ok(log_says "no field 'polcy', did you mean 'policy'?", "a wrong field")
eq(ask "policy().name".value, "decode_first", "nothing has changed")
write("keys", "x\n")
file "policy = 'fair'"
ok(not ask "reload()".ok, "wrong keys")
eq(ask "policy().name".value, "decode_first", "and nothing with them")
write("keys", "other-key-2 bob\n")
os.rename(dir .. "/d.lua", dir .. "/gone.lua")
r = ask "reload()"
ok(not r.ok and r.error:find("nothing has changed: .*d.lua: No such file"), "no file: " .. tostring(r.error))
os.execute("mkfifo " .. dir .. "/d.lua")
r = ask "reload()"
ok(not r.ok and r.error:find "d.lua: not a regular file", "a pipe as the file: " .. tostring(r.error))
os.remove(dir .. "/d.lua")
file "policy = 'decode_first'"
os.execute(("rm %s/keys && mkfifo %s/keys"):format(dir, dir))
r = ask "reload()"
ok(not r.ok and r.error:find "keys: not a regular file", "a pipe as keys: " .. tostring(r.error))
os.remove(dir .. "/keys")
write("d.lua", ([[return { model = "%s/tests/data/tiny-llama", port = 1, socket = "s.sock" }]]):format(here))
write("keys", "third-key-3 eve\n")
server.signal(1)
ok(log_says "keys policy", "keys and policy that are gone want a restart")
eq(ask "policy().name".value, "decode_first", "the policy stays")
eq(post "other-key-2", 401, "and so do keys, with what the file has now")
eq(post "third-key-3", 200, "a third key")
server.signal(15)
eq(server.wait(), 0, "exit")
ok(io.open(dir .. "/s.sock") == nil and os.rename(dir .. "/s.sock", dir .. "/s.sock") == nil, "the socket is gone")

-- TLS, the access log, a bound and a chat template from a file; and options over them, which are told of
local json = require "pl.json"
local function certificate(name)
  return os.execute(("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout %s/%s.key "
    .. "-out %s/%s.pem -days 2 -subj /CN=%s -addext subjectAltName=IP:127.0.0.1 >/dev/null 2>&1"):format(dir, name, dir,
    name, name)) == 0
end
if certificate "one" and certificate "two" then
  write("keys", "other-key-2 bob\n")
  write("t.jinja", "{{ messages[0].content }}{{ messages[0].content }}")
  local function serve(more)
    file [[tls = { cert = "one.pem", key = "one.key" }, limits = { body_bytes = 2048 }, access_log = "log",
      chat_template = "t.jinja"]]
    return client.serve(dir .. "/d.lua " .. more)
  end
  local function curl(cert, path, body)
    write("body", body)
    local p = io.popen(("curl -s --max-time 20 --cacert %s/%s.pem -H 'Authorization: Bearer other-key-2' "
      .. "-w '\\n%%{http_code}' --data-binary @%s/body https://127.0.0.1:%d%s"):format(dir, cert, dir, server.port, path))
    local text, status = p:read("*a"):match "^(.*)\n(%d+)$"
    p:close()
    return tonumber(status), text
  end
  local function lines()
    local f, n = io.open(dir .. "/log"), 0
    if not f then return 0 end
    for _ in f:lines() do n = n + 1 end
    f:close()
    return n
  end
  local long = '{"prompt":"' .. ("x"):rep(3000) .. '"}'
  server = serve ""
  local status, text = curl("one", "/tokenize", '{"prompt":"a storya story","add_special_tokens":false}')
  eq(status, 200, "TLS from the file")
  local count = json.decode(text).count
  status, text = curl("one", "/v1/chat/completions",
    '{"messages":[{"role":"user","content":"a story"}],"max_tokens":1}')
  eq(status, 200, "a chat")
  eq(status == 200 and json.decode(text).usage.prompt_tokens, count, "the template of the file")
  eq((curl("one", "/tokenize", long)), 413, "the bound of the file")
  eq((curl("two", "/health", "")), 0, "another certificate is not its own")
  eq(lines(), 3, "the log of the file")
  os.rename(dir .. "/log", dir .. "/log.1")
  server.signal(1)
  for _ = 1, 500 do
    if server.log():find("reload: ", 1, true) then break end
    client.sleep(0.02)
  end
  eq((curl("one", "/tokenize", '{"prompt":"a"}')), 200, "after a reload")
  -- a pipe in its place that nobody reads, and keys: nothing waits, and nothing changes
  os.execute(("mv %s/log %s/log.2; mkfifo %s/log"):format(dir, dir, dir))
  write("keys", "another-key-3 carol\n")
  server.signal(1)
  for _ = 1, 500 do
    if server.log():find("nothing has changed", 1, true) then break end
    client.sleep(0.02)
  end
  verdicts.has(server.log(), "/log: No such device", "a pipe as the log")
  eq((curl("one", "/version", "")), 405, "the key of before, and nobody waits")
  os.execute(("mv %s/log.2 %s/log"):format(dir, dir))
  write("keys", "other-key-2 bob\n")
  server.signal(15)
  eq(server.wait(), 0, "exit")
  eq(lines(), 2, "a log that was renamed is begun again")
  os.remove(dir .. "/log")
  server = serve(("--tls-cert %s/two.pem --tls-key %s/two.key --max-body 1 --no-log"):format(dir, dir))
  local said = server.log()
  for _, want in ipairs { "--tls-cert " .. dir .. "/two.pem overrides tls.cert = one.pem",
    "--tls-key " .. dir .. "/two.key overrides tls.key = one.key", "--max-body 1 overrides limits.body_bytes = 2048",
    "--no-log overrides access_log = log" } do
    ok(said:find(want .. " of " .. dir .. "/d.lua", 1, true), want .. ": " .. said)
  end
  eq((curl("two", "/tokenize", long)), 200, "--tls-cert and --max-body")
  eq((curl("one", "/tokenize", long)), 0, "not the file's certificate")
  server.signal(15)
  eq(server.wait(), 0, "exit")
  eq(lines(), 0, "--no-log")
else
  print "no openssl: TLS is not tried"
end
os.execute("rm -r " .. dir)

verdicts.done()
