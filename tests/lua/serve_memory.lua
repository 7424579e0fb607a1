-- Large bodies leave no memory behind: a server that has read a few of 8 MB is nearly as small afterwards as before.
local cjson, client = require "cjson", dofile "tests/http_client.lua"
if (os.getenv "PL_SANITIZED" or "") ~= "" then -- they have an allocator of their own, and shadows of the memory
  print "0 passed, 0 failed"
  os.exit(0)
end
local verdicts = dofile "tests/verdicts.lua"
local verdict = verdicts.ok
local ROUNDS, MOST = 4, 48

local s = client.serve "tests/data/tiny-llama --context 512 --batch 2 --no-log"
local function resident() -- MB
  local f = assert(io.open(("/proc/%d/status"):format(s.pid)))
  local text = f:read "*a"
  f:close()
  return tonumber(text:match "VmRSS:%s*(%d+)") / 1024
end
local function post(path, body) return (client.call(s.port, "POST", path, body)) end

local ids = {}
for i = 1, 390000 do ids[i] = i % 200 end
local bodies = {
  { "/v1/completions", '{"prompt":"a","max_tokens":1,"extra":[' .. ("1,"):rep(390000) .. "1]}", 200 },
  { "/v1/completions", '{"prompt":"' .. ("long words and others "):rep(370000) .. '"}', 400 },
  { "/v1/chat/completions", '{"messages":[{"role":"user","content":"' .. ("x "):rep(4000000) .. '"}]}', 400 },
  { "/tokenize", '{"prompt":"' .. ("some words "):rep(700000) .. '"}', 200 },
  { "/detokenize", cjson.encode { tokens = ids }, 200 },
  { "/v1/embeddings", cjson.encode { input = ids }, 400 },
  { "/v1/completions", ("["):rep(8000000), 400 },
  { "/v1/completions", '{"prompt":"' .. ("y"):rep(9000000) .. '"}', 413 },
}
for _, b in ipairs(bodies) do post(b[1], b[2]:sub(1, 2000)) end -- what is made once
post("/v1/completions", cjson.encode { prompt = "a", max_tokens = 1 })
local before = resident()
for _ = 1, ROUNDS do
  for i, b in ipairs(bodies) do
    local status = post(b[1], b[2])
    verdict(status == b[3], ("body %d: %s, want %d"):format(i, tostring(status), b[3]))
  end
end
local after, at = resident(), resident()
for _ = 1, 40 do -- the loop notices that it has nothing to do four times a second
  if after < before + MOST then break end
  client.sleep(0.1)
  after = resident()
end
print(("%.0f MB, %.0f MB behind %d large bodies, %.0f MB when idle"):format(before, at, ROUNDS * #bodies, after))
verdict(after < before + MOST, ("%.0f MB more than before, want less than %d"):format(after - before, MOST))
s.signal(15)
verdict(s.wait() == 0, "exit code")
verdicts.done()
