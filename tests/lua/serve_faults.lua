-- A server that the system treats badly: killed under load and started again on the same disk cache, a cache file that
-- is damaged, cut off, unreadable or too large for its disk, too little memory. What it answers is right, or it says
-- what is wrong and ends. And TLS: served with a certificate of this test's own, clear errors without a good one.
local cjson, client = require "cjson", dofile "tests/http_client.lua"
local pl, ffi = require "pl", require "ffi"
ffi.cdef "unsigned getuid(void);"
local tiny, PAGE = "tests/data/tiny-llama", 64 * 4 * 2 * 32 * 2 * 2
local build = os.getenv "PL_BUILD" or "build"
local sanitized = (os.getenv "PL_SANITIZED" or "") ~= "" -- they reserve terabytes
local verdicts = dofile "tests/verdicts.lua"
local verdict = verdicts.ok

local dir = os.tmpname()
os.remove(dir)
assert(os.execute("mkdir " .. dir) == 0)
local cache = dir .. "/perilune.pages"

-- long prompts that share beginnings, in a cache of few pages: most of them go to the disk
local prompts, want = {}, {}
do
  local m = pl.load(tiny, { batch = 1, context = 512, prefix = false })
  for i = 1, 8 do
    prompts[i] = ("the story of %d and %d; "):format(i % 3, i % 3 * 7):rep(9) .. ("and then %d "):format(i):rep(10)
    want[i] = m:generate({ prompt = prompts[i], max_tokens = 12 }).text
  end
  m:close()
end
local function body(i, more)
  local t = { prompt = prompts[i], max_tokens = 12, temperature = 0 }
  for k, v in pairs(more or {}) do t[k] = v end
  return cjson.encode(t)
end
local small = "--context 512 --batch 2 --queue 20 --no-log "
local tiers = small .. ("--host-cache-bytes %d --disk-cache %s --disk-cache-bytes %d "):format(3 * PAGE, dir,
  60 * (PAGE + 4096))

-- Each prompt, twice: how many answers are right.
local function right(s)
  local n = 0
  for i = 1, 16 do
    local k = (i - 1) % 8 + 1
    local status, text = client.call(s.port, "POST", "/v1/completions", body(k))
    local ok, t = pcall(cjson.decode, text or "")
    if status == 200 and ok and t.choices[1].text == want[k] then n = n + 1 end
  end
  return n
end
local function metric(s, name)
  local _, text = client.call(s.port, "GET", "/metrics")
  return tonumber(text:match("\nperilune_" .. name .. "{?[^%s]* ([%d.e+-]+)")) or -1
end
local function stop(s, what)
  s.signal(15)
  verdict(s.wait() == 0, what .. ": drained")
end

-- Killed while eight clients wait and pages are written, four times; the next one serves what is right.
for round = 1, 4 do
  local s = client.serve(tiny .. " " .. tiers)
  verdict(right(s) == 16, ("start %d after a kill: the answers are right"):format(round))
  verdict(metric(s, "tier_disk_errors_total") == 0, "no errors of the disk")
  if round > 1 then verdict(metric(s, "tier_disk_hits_total") > 0, "pages of the one that was killed are used") end
  local conns = {}
  for i = 1, 8 do
    conns[i] = client.dial(s.port)
    conns[i]:ask("POST", "/v1/completions", body(i, { max_tokens = 100, ignore_eos = true, stream = i % 2 == 0,
      cache_salt = tostring(round) }))
  end
  client.sleep(0.02 * round)
  s.signal(9)
  for i = 1, 8 do
    local began = conns[i]:head()
    local text = began and conns[i]:body { ["content-length"] = nil }
    verdict(not (text and text:find "[DONE]" and not text:find '"finish_reason":"length"'), "a cut answer looks whole")
    conns[i]:close()
  end
  verdict(s.wait() == 137, "killed")
end

-- SIGTERM under load, and at once the next one on the same file.
do
  local s = client.serve(tiny .. " " .. tiers)
  local conns = {}
  for i = 1, 8 do
    conns[i] = client.dial(s.port)
    conns[i]:ask("POST", "/v1/completions", body(i))
  end
  client.sleep(0.05)
  s.signal(15)
  for i = 1, 8 do
    local status, h = conns[i]:head()
    local text = status and conns[i]:body(h)
    verdict(not status or status == 503 or status == 200 and text and cjson.decode(text).choices[1].text == want[i],
      "an answer in a drain: " .. tostring(status))
    conns[i]:close()
  end
  verdict(s.wait() == 0, "drained")
end

-- A damaged file: pages that are not what they were are computed anew. Cut off, or no cache file at all: begun anew.
local function harm(f)
  local h = assert(io.open(cache, "r+b"))
  f(h, h:seek "end")
  h:close()
end
local function bytes_at_random(h, size)
  for _ = 1, 400 do
    h:seek("set", math.random(0, size - 1))
    h:write(string.char(math.random(0, 255)))
  end
end
for what, f in pairs { damaged = function() harm(bytes_at_random) end,
  ["all ones"] = function() harm(function(h, size) h:write(("\255"):rep(size)) end) end,
  ["cut off"] = function() os.execute("truncate -s 12345 " .. cache) end,
  empty = function() os.execute(": > " .. cache) end,
  gone = function() os.remove(cache) end } do
  f()
  local s = client.serve(tiny .. " " .. tiers)
  verdict(right(s) == 16, what .. ": the answers are right")
  stop(s, what)
end
-- ... while it is used
do
  local s = client.serve(tiny .. " " .. tiers)
  verdict(right(s) == 16, "before the damage")
  harm(bytes_at_random)
  verdict(right(s) == 16, "damaged while it is used: the answers are right")
  os.execute("truncate -s 4096 " .. cache)
  verdict(right(s) == 16, "cut off while it is used: the answers are right")
  verdict(client.call(s.port, "GET", "/health") == 200, "and it is healthy")
  stop(s, "cut off")
end

-- A start that fails says why, in a line that names it, with exit code 1.
local function fails(what, args, pattern, before)
  local out = dir .. "/out"
  local code = os.execute(("sh -c '%s exec timeout 60 %s/perilune serve %s --port 0' >%s 2>&1"):format(before or "",
    build, args, out)) / 256
  local f = io.open(out)
  local text = f:read "*a"
  f:close()
  verdict(code == 1 and text:find(pattern) and #text < 1000, ("%s: exit code %s: %s"):format(what, code, text))
end
fails("no directory", tiny .. " " .. small .. "--disk-cache /nowhere/at/all --disk-cache-bytes 10000000",
  "disk cache: /nowhere/at/all/perilune.pages: No such file")
fails("no directory but a file", tiny .. " " .. small .. ("--disk-cache %s --disk-cache-bytes 10000000"):format(cache),
  "disk cache: .*Not a directory")
fails("a disk that is full", tiny .. " " .. tiers, "disk cache: .*files of this process may have", "ulimit -f 64;")
if ffi.C.getuid() ~= 0 then -- root may all
  os.execute("chmod 0 " .. cache)
  fails("no permission", tiny .. " " .. tiers, "disk cache: .*Permission denied")
  os.execute("chmod 600 " .. cache)
end
fails("a key twice", tiny .. " " .. small .. "--keys " .. dir .. "/keys", "keys: line 4, the key of line 2 again",
  ("printf \"# keys\\n12345678 a\\nabcdefgh b\\n12345678 c\\n\" >%s/keys;"):format(dir))
verdict(os.execute(("%s/perilune serve %s --port 0 --name '' >%s/out 2>&1"):format(build, tiny, dir)) / 256 == 2,
  "an empty name is a wrong call")
fails("no address", tiny .. " " .. small .. "--address 256.1.1.1", "http: address")

-- Too little memory, from next to nothing up: a start that fails with a message, or a server whose answers are right,
-- or refused, and that is there in the end. Never a signal, never a wrong answer.
if not sanitized then
  local starts, ends = 0, 0
  local huge = cjson.encode { prompt = ("a b c d e f g h "):rep(200000), max_tokens = 1 }
  for mb = 64, 208, 8 do
    local out = dir .. "/limit"
    os.execute(("(ulimit -v %d; %s/perilune serve %s %s --port 0 >%s.out 2>%s.err & p=$!; echo $p >%s.pid; wait $p; "
      .. "echo $? >%s.code) >/dev/null 2>&1 &"):format(mb * 1024, build, tiny, tiers, out, out, out, out))
    local function read(ext)
      local f = io.open(out .. ext)
      local s = f and f:read "*a" or ""
      if f then f:close() end
      return s
    end
    local port, code
    for _ = 1, 600 do
      port, code = tonumber(read(".out"):match ":(%d+)\n"), tonumber(read ".code")
      if port or code then break end
      client.sleep(0.05)
    end
    if port then
      starts = starts + 1
      local s, pid = { port = port }, tonumber(read ".pid")
      local guard = ffi.gc(ffi.new "char[1]", function() ffi.C.kill(pid, 9) end)
      local wrong, there = 0, true
      local function ask(text)
        local ok, status, answer = pcall(client.call, s.port, "POST", "/v1/completions", text)
        there = there and ok
        return ok and status, answer
      end
      for i = 1, 8 do
        local status, text = ask(body(i))
        local ok, t = pcall(cjson.decode, text or "")
        if status == 200 and not (ok and t.choices[1].text == want[i]) then wrong = wrong + 1 end
        if i == 4 then
          status = ask(huge)
          verdict(status ~= 200, "a prompt that is too long: " .. tostring(status))
        end
      end
      verdict(wrong == 0, ("%d MB: %d wrong answers"):format(mb, wrong))
      local ok, status
      for _ = 1, 40 do -- a connection without memory is closed; it may have ended behind its last answer
        ok, status = pcall(client.call, s.port, "GET", "/health")
        if not ok or status == 200 then break end
        client.sleep(0.05)
      end
      there = there and ok
      verdict(not there or status == 200, ("%d MB: healthy in the end: %s"):format(mb, read ".err"))
      ffi.C.kill(pid, 15)
      for _ = 1, 400 do
        code = tonumber(read ".code")
        if code then break end
        client.sleep(0.05)
      end
      ffi.gc(guard, nil)
      -- libraries that do not ask whether they have memory may end it, with a message
      if not there then print(("%d MB: ended while it served: %s %s"):format(mb, tostring(code), read ".err")) end
      verdict(code == (there and 0 or 1) and (there or read ".err":find "memory"),
        ("%d MB: drained: %s %s"):format(mb, tostring(code), read ".err"))
    else
      ends = ends + 1
      local text = read ".err"
      verdict(code == 1 and #text > 10, ("%d MB: no start: exit code %s: %s"):format(mb, tostring(code), text))
    end
    os.execute(("rm -f %s.*"):format(out))
  end
  local told = ("%d limits of memory with a server, %d without"):format(starts, ends)
  print(told)
  verdict(starts > 0 and ends > 0, told)
end

-- TLS
local function openssl(args) return os.execute(("openssl %s >/dev/null 2>&1"):format(args)) == 0 end
local cert, secret, other = dir .. "/cert.pem", dir .. "/key.pem", dir .. "/other.pem"
if openssl(("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout %s -out %s -days 2 "
  .. "-subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"):format(secret, cert))
  and openssl("genpkey -algorithm EC -pkeyopt ec_paramgen_curve:prime256v1 -out " .. other) then
  local s = client.serve(("%s %s --tls-cert %s --tls-key %s"):format(tiny, small, cert, secret))
  local function curl(args)
    local p = io.popen(("curl -s --max-time 20 --cacert %s %s 2>&1"):format(cert, args))
    local text = p:read "*a"
    p:close()
    return text
  end
  local url = "https://127.0.0.1:" .. s.port
  local ok, t = pcall(cjson.decode, curl(url .. "/health"))
  verdict(ok and t.ready == true, "https: health")
  local f = io.open(dir .. "/body", "w")
  f:write(body(1))
  f:close()
  ok, t = pcall(cjson.decode, curl(("%s/v1/completions --data-binary @%s/body"):format(url, dir)))
  verdict(ok and t.choices and t.choices[1].text == want[1], "https: an answer")
  f = io.open(dir .. "/body", "w")
  f:write(body(2, { stream = true }))
  f:close()
  local text = curl(("-N %s/v1/completions --data-binary @%s/body"):format(url, dir))
  local whole = {}
  for data in text:gmatch "data: ({[^\n]*)\n" do
    for _, c in ipairs(cjson.decode(data).choices) do whole[#whole + 1] = c.text end
  end
  verdict(table.concat(whole) == want[2] and text:find "[DONE]", "https: a stream")
  -- those that speak no TLS, or begin to and stop, or go
  local plain, silent, half = client.dial(s.port), client.dial(s.port), client.dial(s.port)
  plain:ask("GET", "/health")
  half:send "\22\3\1\2\0\1\0\1\252\3\3"
  verdict(not plain:head(), "no answer without TLS")
  ok, t = pcall(cjson.decode, curl(url .. "/health"))
  verdict(ok and t.ready == true, "the others are served")
  plain:close()
  silent:close()
  half:close()
  verdict(curl("--insecure --tls-max 1.1 " .. url .. "/health") == "", "old versions of TLS are refused")
  stop(s, "https")
  local with = tiny .. " " .. small .. "--tls-cert %s --tls-key %s"
  local function file(name, pem)
    local g = assert(io.open(dir .. "/" .. name, "w"))
    g:write(pem)
    g:close()
    return dir .. "/" .. name
  end
  fails("no certificate file", with:format(dir .. "/nothing.pem", secret), "/nothing.pem: No such file")
  fails("no key file", with:format(cert, dir .. "/nothing.pem"), "/nothing.pem: No such file")
  fails("a certificate that is none", with:format(dir .. "/body", secret), "/body: no certificate in PEM format")
  fails("a key that is none", with:format(cert, dir .. "/body"), "/body: no private key in PEM format")
  fails("a certificate for a key", with:format(cert, cert), "/cert.pem: no private key in PEM format")
  fails("an empty file", with:format(file("empty.pem", ""), secret), "/empty.pem: no certificate in PEM format")
  fails("garbage in a certificate", with:format(file("garbage.pem",
    "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), secret), "/garbage.pem and the key .*/key.pem")
  fails("a directory", with:format(dir, secret), dir .. ": Is a directory")
  fails("another certificate's key", with:format(cert, other), "certificate .*/cert.pem and the key .*/other.pem")
else
  print "no openssl: TLS is not tried"
end

os.execute("rm -rf " .. dir)
verdicts.done()
