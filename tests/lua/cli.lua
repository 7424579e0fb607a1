-- The command line: verbs, their JSON, their exit codes, and what `plan` adds up.
-- luacheck: no max line length
local cjson = require "cjson"
local perilune = (os.getenv "PL_BUILD" or "build") .. "/perilune"
local model = "tests/data/tiny-llama"
local verdicts = dofile "tests/verdicts.lua"
local verdict = verdicts.ok

local function call(args, input, before)
  local errors, stdin = os.tmpname(), os.tmpname()
  local f = assert(io.open(stdin, "wb"))
  f:write(input or "")
  f:close()
  local p = io.popen(("%s%s <%s %s 2>%s; echo \" $?\""):format(before or "", perilune, stdin, args, errors))
  local out = p:read "*a"
  p:close()
  local e = io.open(errors)
  local said = e:read "*a"
  e:close()
  os.remove(errors)
  os.remove(stdin)
  local body, code = out:match "^(.*) (%d+)\n$"
  return body, tonumber(code), said
end

local function fails(args, want, code)
  local out, got, said = call(args)
  verdict(got == code and said:find(want, 1, true), ("%s: exit %s\n%s\nwant %d: %s"):format(args,
    tostring(got), said, code, want))
  verdict(out == "", args .. ": wrote to stdout: " .. out)
end

-- wrong calls are 2, failures 1, both on stderr
fails("rnu " .. model, "did you mean 'run'?", 2)
fails("--nonsense", "--nonsense: no such option", 2)
fails("run", "MODEL: nothing given, want a GGUF file", 2)
fails("run " .. model, "one of --prompt, --file and --ids", 2)
fails("run " .. model .. " --prompt a --ids 1", "one of --prompt, --file and --ids", 2)
fails("run " .. model .. " --ids 1,x", "--ids: 'x', want token ids", 2)
fails("run " .. model .. " --ids 1 --act f64", "--act", 2)
fails("run " .. model .. " --ids 1 --max-tokens -1", "max-tokens", 2)
fails("run " .. model .. " --ids 2147483648", "--ids: '2147483648', want token ids", 2)
for _, o in ipairs { "temperature", "top-p", "min-p", "repetition-penalty" } do
  fails("run " .. model .. " --ids 1 --" .. o .. " nan", "--" .. o .. ": 'nan', want a number from", 2)
end
fails("run " .. model .. " --ids 1 --top-p 0", "--top-p: '0', want a number from", 2)
fails("run " .. model .. " --ids 1 --temperature 1 --top-k 1e18", "--top-k: '1e18', want a whole number of at most 2147483647", 2)
fails("run " .. model .. " --ids 1 >/dev/full", "standard output", 1)
fails("run " .. model .. " --ids 1 --json >/dev/full", "standard output", 1)
fails("--help >/dev/full", "standard output", 1)
fails("run --help >/dev/full", "standard output", 1)
fails("run " .. model .. " --ids 1 --json >&-", "standard output", 1)
fails("/tmp", "/tmp", 1)
-- files that are written: whole or not at all
do
  local ask = "calibrate " .. model .. " --ids 1,2,3 --out "
  local dir = os.tmpname()
  os.remove(dir)
  os.execute("mkdir " .. dir)
  local function holds(want)
    local p = io.popen("cd " .. dir .. " && ls -A && cat * 2>/dev/null")
    local got = p:read "*a"
    p:close()
    verdict(got:find(want), ask .. "left " .. got)
  end
  fails(ask .. "/dev/full", "/dev/full: No space left", 1)
  fails(ask .. dir .. "/a/b", "No such file", 1)
  fails(ask .. dir, "Is a directory", 1)
  holds "^$"
  -- the limit on a file's size is reached in the middle
  os.execute("echo before >" .. dir .. "/out && ln -s out " .. dir .. "/link && chmod 640 " .. dir .. "/out")
  local out, code, said = call(("simulate --requests 500 --svg %s/link"):format(dir), "", "ulimit -f 1; trap '' XFSZ; ")
  verdict(code == 1 and out == "" and said:find "link: File too large", "a full disk: " .. said)
  holds "^link\nout\nbefore\nbefore\n$"
  out, code, said = call(ask .. dir .. "/link")
  verdict(code == 0, "through a link: " .. out .. said)
  holds '^link\nout\n{.*}\n{.*}\n$'
  local p = io.popen("stat -c %a " .. dir .. "/out && readlink " .. dir .. "/link")
  verdict(p:read "*a" == "640\nout\n", "the old file's rights stay, and the link")
  p:close()
  out = call("simulate --requests 5 --svg /dev/stdout")
  verdict(out:find "<svg.*</svg>.*tok/s", "--svg /dev/stdout: " .. out)
  -- a model that is cut off while it is read
  os.execute(("cp tests/data/tiny-llama-gguf/model.gguf %s/m.gguf"):format(dir))
  out, code, said = call(([[-e 'local m = require("pl.model").open "%s/m.gguf" io.open("%s/m.gguf", "wb"):close() ]]
    .. "m:start()'"):format(dir, dir))
  verdict(code == 1 and said == ("perilune: %s/m.gguf: it was cut off, or cannot be read any more\n"):format(dir),
    ("a file that is cut off: %s %s %s"):format(tostring(code), out, said))
  os.execute("rm -r " .. dir)
end
for _, wrong in ipairs { "batch 1e300", "context 2147483648", "tokens 1e300", "cache-bytes 1e17" } do
  fails("plan llama --" .. wrong, wrong:match "^%S+" .. ": '" .. wrong:match "%S+$" .. "', want a whole number ", 2)
end
fails("plan llama --cache-bytes 100", "want at ", 1)
fails("plan " .. model .. " --context 1025", "context: 1025 tokens, the model was made for at most 1024", 1)
fails("run " .. model .. " --ids 1,2 --host-cache-bytes 1e14", "host cache: no memory for", 1)
fails("bench serve " .. model .. " --requests 1 --cache-bytes 1e14", "kv: no memory for", 1)
do
  local out = call("bench serve " .. model .. " --requests 3 --in 100 --out 20 --context 50")
  verdict(out:find "Successful requests: +3" and out:find "Requests cut to fit the context: +3", "cut to the context: " .. out)
  out = call("bench serve " .. model .. " --requests 3 --in 30 --out 20 --context 50")
  verdict(out:find "Successful requests: +3" and not out:find "cut", "what fits is not cut: " .. out)
  out = call("bench serve " .. model .. " --requests 1 --in 1e9 --out 2 --context 50")
  verdict(out:find "Successful requests: +1" and out:find "Requests cut to fit the context: +1", "a prompt without an end is cut: " .. out)
end
fails("calibrate " .. model .. " --file /dev/null --out /dev/null", "the prompt is empty", 2)
fails("plan " .. model .. " --kv bf16 --kv-scales x.json", "kv_scales: x.json, but scales are for a cache in fp8", 1)
fails("plan " .. model .. " --kv-scale head", "kv_scale: head, but scales are for a cache in fp8, and this one is in bf16", 1)
-- lines and pipes without an end
fails("simulate --trace /dev/zero", "/dev/zero: a line of more than", 1)
fails("simulate --policy /dev/zero", "/dev/zero: more than", 1)
fails("simulate --policy /tmp", "/tmp: Is a directory", 1)
for _, wrong in ipairs { "batch 65537", "queue 1e9", "tenants 4097", "page 1040", "cache-tokens 1e12", "seed 1e17",
  "step-tokens 1e300", "in 1e18", "out inf", "prefix-share 1.5", "requests 1e300", "rate nan" } do
  local name, value = wrong:match "^(%S+) (%S+)$"
  fails("simulate --" .. wrong, ("perilune simulate: --%s: '%s', want a "):format(name, value), 2)
end
fails("-e", "wants a text", 2)
fails("-e 'error {}'", "", 1)
fails("run " .. model .. " --ids 5000", "token", 1)
-- a directory that is no model; files without an end
local empty = os.tmpname()
os.remove(empty)
os.execute("mkdir " .. empty)
fails("run " .. empty .. " --ids 1", "is no model: it has no config.json and no *.safetensors", 1)
os.execute(("cp %s/config.json %s"):format(model, empty))
fails("run " .. empty .. " --ids 1", "is no model: it has no *.safetensors", 1)
os.execute("rm -r " .. empty)
fails("check /dev/zero", "/dev/zero: more than 1 MB", 1)
fails("check /tmp", "/tmp is no model: it has no config.json", 1)
fails("/dev/zero", "/dev/zero: more than 64 MB", 1)
fails("run " .. model .. " --file /dev/zero", "/dev/zero: more than 64 MB", 1)
fails("run " .. model .. " --file /tmp", "/tmp: Is a directory", 1)
fails("tokenize " .. model .. " </dev/zero", "standard input: more than 64 MB", 1)
fails("tokenize --lines " .. model .. " </dev/zero", "standard input: a line of more than 4 MB", 1)
fails("-e '' </dev/zero", "", 0)
verdict(call("score " .. model .. " --file - --top 1", "the") == call("score " .. model .. " --prompt the --top 1"),
  "--file -: standard input")
verdict(call("tokenize --lines " .. model, '"a"\n"b"') == call("tokenize --lines " .. model, '"a"\n"b"\n'), "a last line without its end")
fails("run /no/such/model --ids 1", "/no/such/model", 1)
fails("run recipes/llama.lua --ids 1", "it needs weights", 1)
fails("run " .. model .. " --ids 1 --file /no/such/file", "one of", 2)
fails("score " .. model .. " --file /no/such/file", "/no/such/file", 1)
for _, verb in ipairs { "run", "score" } do
  fails(verb .. " " .. model .. " --ids " .. ("1,"):rep(1024) .. "1", "the model's context 1024", 1)
end
fails("check /no/such/recipe.lua", "no recipe", 1)
fails("check llma", "did you mean 'llama'?", 1)

local out, code = call "-e '1 + 1'"
verdict(code == 0 and out == "2\n", "-e: " .. out)
out, code = call "--version"
verdict(code == 0 and out:match "^perilune %d+%.%d+%.%d+\n$", "--version: " .. out)
out, code = call "--help"
verdict(code == 0 and out:find "perilune run" and out:find "perilune plan", "--help")
for _, verb in ipairs { "run", "score", "tokenize", "check", "plan" } do
  out, code = call(verb .. " --help")
  verdict(code == 0 and out:find("Usage: perilune " .. verb, 1, true), verb .. " --help: " .. out)
end

-- run
out, code = call("run " .. model .. " --ids 333 --max-tokens 6 --act f32 --json")
local r = cjson.decode(out)
verdict(code == 0 and table.concat(r.tokens, " ") == "262 71 16 223 223 223", "run --json: " .. out)
verdict(r.prompt_tokens == 1 and r.finish_reason == "length" and r.act == "f32", "run --json: " .. out)
for _, k in ipairs { "load_s", "prefill_s", "decode_s", "prefill_tok_s", "decode_tok_s" } do
  verdict(type(r.timings[k]) == "number" and r.timings[k] > 0, "timings." .. k)
end
do
  local m = r.memory
  verdict(m.weights > 1e5 and m.cache > 0 and m.activations > 0 and m.resident > m.weights and m.peak >= m.resident,
    "memory: " .. out)
end
local text, _, said = call("run " .. model .. " --prompt 'Question' --max-tokens 6 --act f32")
verdict(text == "Question" .. r.text .. "\n", ("run as text: %q, json has %q"):format(text, r.text))
verdict(said:find "tok/s" and said:find "act f32", "run says how fast: " .. said)
out = call("run recipes/llama.lua --weights " .. model .. " --ids 333 --max-tokens 6 --act f32 --json")
verdict(table.concat(cjson.decode(out).tokens, " ") == "262 71 16 223 223 223", "run RECIPE --weights: "
  .. out)
out = call("run " .. model .. " --recipe llama --ids 333 --max-tokens 6 --act f32 --json")
verdict(table.concat(cjson.decode(out).tokens, " ") == "262 71 16 223 223 223", "run --recipe: " .. out)
out = call("run " .. model .. " --ids 333 --max-tokens 0 --json")
verdict(#cjson.decode(out).tokens == 0 and cjson.decode(out).finish_reason == "length",
  "run --max-tokens 0: " .. out)
local a = call("run " .. model .. " --ids 333 --max-tokens 20 --temperature 1 --seed 7 --ignore-eos --json")
local b = call("run " .. model
  .. " --ids 333 --max-tokens 20 --temperature 1 --seed 7 --ignore-eos --threads 1 --json")
local c = call("run " .. model .. " --ids 333 --max-tokens 20 --temperature 1 --seed 8 --ignore-eos --json")
local function tokens(json) return table.concat(cjson.decode(json).tokens, " ") end
verdict(tokens(a) == tokens(b) and tokens(a) ~= tokens(c), "seeds")

-- score
out, code = call("score " .. model .. " --ids 333,28,375 --top 5 --act f32 --json")
r = cjson.decode(out)
verdict(code == 0 and #r.top == 5 and #r.tokens == 3 and r.nll > 0 and r.logsumexp > r.top[1][2], "score: "
  .. out)
for i = 2, 5 do verdict(r.top[i][2] <= r.top[i - 1][2], "score: the order of top") end
out = call("score " .. model .. " --ids 333 --json")
verdict(cjson.decode(out).nll == cjson.null, "score of one token: " .. out)

-- tokenize
out = call("tokenize " .. model, "Question")
verdict(out == "333\n", "tokenize: " .. out)
out = call("tokenize " .. model .. " --json", "Question")
verdict(cjson.decode(out).tokens[1] == 333, "tokenize --json: " .. out)
out = call("tokenize " .. model .. " --lines", '"Question"\n"a\\nb"\n""\n')
verdict(out:match "^%[333%]\n%[[%d,]+%]\n%[%]\n$", "tokenize --lines: " .. out)
local ids = out:match "\n(%[.-%])\n"
out = call("tokenize " .. model .. " --decode --lines", ids .. "\n[]\n")
verdict(out == '"a\\nb"\n""\n', "tokenize --decode --lines: " .. out)
out = call("tokenize " .. model .. " --decode", "333, 333")
verdict(out == "QuestionQuestion", "tokenize --decode: " .. out)
out = call("tokenize " .. model, "<|im_end|>")
verdict(out ~= "2\n", "a special token's name is plain text: " .. out)
out = call("tokenize " .. model .. " --specials", "<|im_end|>")
verdict(out == "2\n", "tokenize --specials: " .. out)

for given, want in pairs { ["5 x"] = "token 2: 'x'", ["-1"] = "token 1: '-1'", ["1024"] = "token 1: '1024'", ["1.5"] = "token 1: '1.5'",
  ["1e9"] = "token 1: '1e9'" } do
  local got, exit, complaint = call("tokenize " .. model .. " --decode", given)
  verdict(exit == 1 and got == "" and complaint:find(want .. ", want an id below 1024", 1, true), "tokenize --decode: " .. given .. complaint)
end

-- check and plan
out, code = call "check recipes/gemma3.lua"
verdict(code == 0 and out:find "fine", "check: " .. out)
out, code = call("plan " .. model .. " --json --context 256 --batch 2")
r = cjson.decode(out)
local d, V = 192, 1024
local per_layer = d * 192 * 2 + d * 64 * 2 + 3 * d * 512 -- q, o; k, v; the feed-forward
verdict(code == 0 and r.parameters == 2 * V * d + 4 * (per_layer + 2 * d) + d, "plan: parameters " .. tostring(r.parameters))
local sum = 0
for _, w in ipairs(r.weights) do
  sum = sum + w.bytes
  if w.class == "norm" then verdict(w.format == "f32" and w.bytes == 9 * d * 4, "plan: norms") end
  if w.class == "mlp" then verdict(w.format == "bf16" and w.weights == 12 and w.bytes >= 4 * 3 * d * 512 * 2, "plan: mlp") end
end
verdict(sum == r.weight_bytes and r.total_bytes == r.weight_bytes + r.cache_bytes + r.activation_bytes, "plan: sums")
verdict(r.cache_bytes_per_token == 4 * 2 * 32 * 2 * 2 and r.cache_bytes == 2 * 256 * r.cache_bytes_per_token, "plan: cache")
out = call("plan " .. model .. " --json --act f32 --context 256")
verdict(cjson.decode(out).cache_bytes_per_token == 4 * 2 * 32 * 2 * 4, "plan: an f32 cache")
out = call("plan " .. model .. " --json --host-cache-bytes 200000 --disk-cache /tmp --disk-cache-bytes 1000000")
local tiers, page = cjson.decode(out).tiers, 64 * 4 * 2 * 32 * 2 * 2
verdict(tiers.host.pages == 3 and tiers.host.bytes == 3 * page and tiers.disk.directory == "/tmp"
  and tiers.disk.pages == math.floor(1e6 / (page + 4096)), "plan: what lies behind the cache")

-- a disk cache: the second run finds what the first one left, and says the same; what has no use is told
local dir, long = os.tmpname(), {}
os.remove(dir)
assert(os.execute("mkdir " .. dir) == 0)
for i = 1, 150 do long[i] = i * 7 % 900 + 20 end
local with_disk = ("run %s --json --max-tokens 5 --ids %s --disk-cache %s"):format(model, table.concat(long, ","), dir)
local answer = {}
for i = 1, 2 do
  out = call(with_disk .. " --disk-cache-bytes 1000000")
  answer[i] = table.concat(cjson.decode(out).tokens, " ")
end
verdict(#answer[1] > 0 and answer[1] == answer[2], "run --disk-cache: the same twice")
local f = io.open(dir .. "/perilune.pages", "rb")
verdict(f and f:read(7) == "PLPAGES", "run --disk-cache: a file")
if f then f:close() end
_, code, said = call(with_disk)
verdict(code == 1 and said:find "want both", "--disk-cache without a size: " .. said)
_, code, said = call(with_disk .. "/none --disk-cache-bytes 1000000")
verdict(code == 1 and said:find "No such file", "--disk-cache, no such directory: " .. said)
os.execute("rm -r " .. dir)

out, code = call "plan recipes/llama.lua --json"
verdict(code == 0 and cjson.decode(out).parameters == 134515008, "plan of a recipe: " .. out)
out = call "plan qwen3 --json"
verdict(cjson.decode(out).parameters == 596049920, "plan of qwen3: " .. out)
out = call "plan gemma3 --json"
verdict(cjson.decode(out).parameters == 268098176, "plan of gemma3: " .. out)
out = call "plan qwen2 --json"
verdict(cjson.decode(out).parameters == 494032768, "plan of qwen2: " .. out)

verdicts.done()
