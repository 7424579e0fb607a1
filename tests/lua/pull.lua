-- `perilune pull` against a hub that stalls, cuts off, lies about lengths and hashes, ignores Range, redirects: the
-- right file in the end, or an error that says what is wrong and no file.
local perilune = (os.getenv "PL_BUILD" or "build") .. "/perilune"
local verdicts = dofile "tests/verdicts.lua"
local ok = verdicts.ok
local function read(path)
  local f = io.open(path, "rb")
  local s = f and f:read "*a"
  if f then f:close() end
  return s
end
local function shell(command)
  local p = io.popen(command .. " 2>&1; echo $?")
  local text, code = p:read("*a"):match "^(.-)(%d+)\n$"
  p:close()
  return text, tonumber(code)
end

local dir = os.tmpname()
os.remove(dir)
os.execute("mkdir " .. dir)
os.execute(("python3 tests/fake_hub.py %s/log >%s/port 2>%s/hub.err &"):format(dir, dir, dir))
local port, sha, pid
for _ = 1, 200 do
  port, sha, pid = (read(dir .. "/port") or ""):match "(%d+) (%x+) (%d+)"
  if port then break end
  os.execute "sleep 0.05"
end
assert(port, read(dir .. "/hub.err"))
local token = dir .. "/token"
local function write(path, s)
  local f = assert(io.open(path, "wb"))
  f:write(s)
  f:close()
end
write(token, "hf_secret\n")

local function pull(mode, more, name)
  return shell(("%s pull %s --hub http://127.0.0.1:%s/%s --dir %s/%s %s"):format(perilune, name or "a/b", port, mode,
    dir, mode, more or ""))
end
local function file_of(mode, name) return ("%s/%s/a/b/%s"):format(dir, mode, name or "m-Q4_K_M.gguf") end
local function right(mode, more, name)
  local text, code = pull(mode, more, name)
  ok(code == 0, mode .. ": " .. text)
  ok(text:find(file_of(mode), 1, true), mode .. ": prints the path: " .. text)
  local sum = shell("sha256sum " .. file_of(mode))
  ok(sum:find(sha, 1, true), mode .. ": the file is right")
  ok(shell("ls " .. file_of(mode, "")) == "m-Q4_K_M.gguf\n", mode .. ": nothing else is left")
end
local function wrong(mode, want, more, name)
  local text, code = pull(mode, more, name)
  ok(code == 1 and text:find(want, 1, true), ("%s: want '%s', code %d: %s"):format(mode, want, code, text))
  ok(not read(file_of(mode)), mode .. ": no file")
end
local function asked(mode) -- the ranges that were asked for
  local out = {}
  for m, range in read(dir .. "/log"):gmatch "(%S+) %S*resolve/%S+ (%S+)" do
    if m == mode then out[#out + 1] = range end
  end
  return table.concat(out, " ")
end

right "good"
local _, n = asked "good":gsub("%S+", "")
right "good"
local _, again = asked "good":gsub("%S+", "")
ok(n == 1 and again == 1, "a file that is there is not fetched again")
right "early"
ok(asked "early" == "- bytes=100000-", "early: goes on where it stopped: " .. asked "early")
right("stall", "--timeout 2")
right "norange"
right "busy"
right("many", nil, "a/b:q4_k_m")
right("redirect", "--token-file " .. token)
local log = read(dir .. "/log")
ok(log:find("redirect api/%S+ %- Bearer hf_secret"), "the hub gets the token")
ok(log:find("redirect cdn %- %-\n"), "another host does not get it")

right("relative", "--token-file " .. token)
ok(read(dir .. "/log"):find("relative cdn %- Bearer hf_secret\n"), "the hub gets it behind a redirect of its own")
wrong("loop", "redirects")
local _, turns = asked "loop":gsub("%S+", "")
ok(turns == 11, "one try, which ends after ten redirects: " .. turns)
wrong("elsewhere", "not supported or disabled")
-- what will not be otherwise the next time is told at once
for mode, want in pairs { ["401"] = "401: not for you (wants a token that may read it: --token-file)",
  ["403"] = "(wants a token", ["404"] = "m-Q4_K_M.gguf: status 404: not for you", ["410"] = "status 410" } do
  wrong(mode, want)
  ok(asked(mode) == "-", mode .. ": one try: " .. asked(mode))
end
ok(asked "elsewhere" == "-", "elsewhere: one try: " .. asked "elsewhere")
do
  local text, code = shell(("ulimit -f 100; %s pull a/b --hub http://127.0.0.1:%s/full --dir %s/full")
    :format(perilune, port, dir))
  ok(code == 1 and text:find("File too large", 1, true), "a full disk: " .. text)
  ok(asked "full" == "-", "a full disk: one try: " .. asked "full")
end

-- a second start goes on from the first one's part, and does not trust it
os.execute("mkdir -p " .. file_of("resume", ""))
local part = file_of("resume", "m-Q4_K_M.gguf." .. sha:sub(1, 12) .. ".part")
os.execute(("head -c 5000 %s >%s"):format(file_of "good", part))
right "resume"
ok(asked "resume" == "bytes=5000-", "resume: " .. asked "resume")
os.remove(file_of "resume")
write(part, ("x"):rep(5000))
right "resume"

-- what was begun of another revision goes when the file is there
os.execute(("touch %s %s"):format(file_of("resume", "m-Q4_K_M.gguf.0123456789ab.part"), file_of("resume", "x.part")))
os.remove(file_of "resume")
local said = pull "resume"
ok(said:find(file_of "resume", 1, true) and shell("ls " .. file_of("resume", "")) == "m-Q4_K_M.gguf\nx.part\n",
  "parts of other revisions: " .. said)
os.remove(file_of("resume", "x.part"))

-- two at once: the second waits, and finds what the first one has fetched; where that one is killed, it goes on
local function begin(mode, k)
  os.execute(("(%s pull a/b --hub http://127.0.0.1:%s/%s --dir %s/%s >%s/out%d 2>&1 & echo $! >%s/pid%d; wait $!;"
    .. " echo $? >>%s/out%d) 2>/dev/null &"):format(perilune, port, mode, dir, mode, dir, k, dir, k, dir, k))
end
local function until_(f)
  for _ = 1, 400 do
    if f() then return true end
    os.execute "sleep 0.05"
  end
end
local function ended(k) return (read(dir .. "/out" .. k) or ""):match "\n(%d+)\n$" end
for k = 1, 3 do begin("slow", k) end
ok(until_(function() return ended(1) and ended(2) and ended(3) end), "three at once: they end")
local waited = 0
for k = 1, 3 do
  local out = read(dir .. "/out" .. k)
  ok(out:find(file_of "slow" .. "\n0\n", 1, true), "three at once: " .. out)
  if out:find("m-Q4_K_M.gguf: another pull is at work on it", 1, true) then waited = waited + 1 end
end
ok(waited == 2, "three at once: two wait: " .. waited)
ok(asked "slow" == "-", "three at once: one fetches: " .. asked "slow")
ok(shell("ls " .. file_of("slow", "")) == "m-Q4_K_M.gguf\n", "three at once: nothing else is left")
ok(shell("sha256sum " .. file_of "slow"):find(sha, 1, true), "three at once: the file is right")
os.remove(file_of "slow")
local own = file_of("slow", "m-Q4_K_M.gguf." .. sha:sub(1, 12) .. ".part")
begin("slow", 1)
ok(until_(function() return #(read(own) or "") > 90000 end), "one of two: begun")
begin("slow", 2)
ok(until_(function() return (read(dir .. "/out2") or ""):find "another pull" end), "one of two: the second waits")
os.execute(("kill -9 $(cat %s/pid1)"):format(dir))
ok(until_(function() return ended(2) end), "one of two is killed: the other one ends")
ok(read(dir .. "/out2"):find(file_of "slow" .. "\n0\n", 1, true), "one of two is killed: " .. read(dir .. "/out2"))
ok(asked("slow"):find "^%- %- bytes=9%d+%-$", "one of two is killed: the other goes on: " .. asked "slow")

wrong("once", "sha256")
wrong("rotten", "sha256")
ok(asked "rotten" == "-", "rotten: what was fetched as a whole is not fetched again: " .. asked "rotten")
wrong("liar", "300001 bytes in the answer, 300000 in the hub's list")
wrong("forever", "more than the 300000 bytes")
wrong("wrongpart", "another part")
wrong("missing", "Repository not found")
wrong("junk", "not a list of files")
wrong("escape", "is not the name of a file")
wrong("absolute", "is not the name of a file")
wrong("huge", "has a size of")
os.remove(file_of "many")
wrong("many", "which of its files")
wrong("none", "no file and no quantisation 'Q9'", nil, "a/b:Q9")
wrong("none", "no model", nil, "'../b'")
local text, code = shell(("%s pull a/b --hub http://192.0.2.1 --token-file %s"):format(perilune, token))
ok(code == 1 and text:find "over https only", "no token without TLS: " .. text)
text, code = pull "folder"
ok(code == 0 and text == dir .. "/folder/a/b\n", "a directory: " .. text)
ok(shell("ls " .. file_of("folder", "")) == "config.json\nmodel.safetensors\n", "a directory: what a model needs")

-- places that cannot be written to
os.execute(("mkdir -p %s %s && mkfifo %s"):format(file_of "good2", file_of("good3", ""), file_of "good3"))
for _, mode in ipairs { "good2", "good3" } do
  text, code = pull(mode)
  ok(code == 1 and text:find("m-Q4_K_M.gguf: is there, and no regular file", 1, true), mode .. ": " .. text)
end
text, code = shell(("%s pull a/b --hub http://127.0.0.1:%s/good --dir %s/x"):format(perilune, port, token))
ok(code == 1 and text:find "cannot create directory" and select(2, text:gsub("\n", "")) == 1, "no directory: " .. text)

os.execute("kill " .. pid)
os.execute("rm -r " .. dir)
verdicts.done()
