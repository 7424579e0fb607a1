-- Options that would do nothing are refused, with what they need; so are empty texts. And each of them, with what it
-- needs, is taken.
-- luacheck: no max line length
local perilune = (os.getenv "PL_BUILD" or "build") .. "/perilune"
local model, gguf = "tests/data/tiny-llama", "tests/data/tiny-llama-gguf/model.gguf"
local files = dofile "tests/files.lua"
local verdicts = dofile "tests/verdicts.lua"
local verdict = verdicts.ok
local dir = os.tmpname()
os.remove(dir)
os.execute("mkdir " .. dir)

local function call(args)
  local p = io.popen(("%s %s </dev/null 2>&1; echo \" $?\""):format(perilune, args))
  local out, code = p:read("*a"):match "^(.*) (%d+)\n$"
  p:close()
  return tonumber(code), out
end

-- { arguments, what is said }: a wrong call, whose exit code is 2
local URL = "http://127.0.0.1:1"
local refused = {}
local function group(before, want, list)
  for _, option in ipairs(list) do
    refused[#refused + 1] = { before .. " " .. option, option:match "^%-%-[%w-]+" .. ": " .. want }
  end
end
local of_models = { "--recipe llama", "--weights x", "--kv f32", "--kv-scale token", "--kv-scales x", "--act f32", "--threads 1",
  "--path portable", "--host-cache-bytes 1e6", "--disk-cache x", "--disk-cache-bytes 1e6" }
group("run " .. model .. " --ids 1", "wants --temperature above 0", { "--top-p 0.5", "--min-p 0.1", "--top-k 3", "--seed 4" })
group("chat " .. model, "wants --temperature above 0", { "--top-p 0.5", "--min-p 0.1", "--top-k 3", "--seed 4" })
group("chat " .. model, "wants --url", { "--name x", "--key-file x" })
group("chat --url " .. URL, "wants MODEL", of_models)
group("chat --url " .. URL, "wants MODEL", { "--context 9" })
group("bench serve " .. model, "wants --url", { "--clients 2", "--api chat", "--name x", "--key-file x", "--requests-file x",
  "--prompts ids", "--vocab 9", "--temperature 0", "--ignore-eos", "--svg x" })
group("bench serve --url " .. URL, "wants MODEL, not --url", of_models)
group("bench serve --url " .. URL, "wants MODEL, not --url", { "--concurrency 2", "--tenants 2", "--prefixes 2", "--prefix-tokens 2",
  "--prefix-share 0.5", "--policy fair", "--batch 2", "--step-tokens 9", "--chunk 9", "--context 9", "--cache-bytes 9",
  "--queue 9", "--no-prefix-cache", "--prof x" })
group("bench serve --url " .. URL, "wants --prompts ids", { "--vocab 9" })
group("bench serve " .. model, "wants --prefix-share above 0", { "--prefixes 2", "--prefix-tokens 2" })
group("simulate", "wants --prefix-share above 0", { "--prefixes 2", "--prefix-tokens 2" })
group("simulate", "wants --tenants above 1", { "--window 3" })
group("simulate --trace x", "makes a trace, and one is given", { "--lengths fixed", "--requests 2", "--rate 2", "--in 2", "--out 2",
  "--tenants 2", "--deadline 2", "--seed 2", "--prefix-share 0.5", "--prefixes 2", "--prefix-tokens 2" })
group("attach x.sock", "the socket is given already", { "--port 3" })
group("attach x.sock", "wants --write", { "--policy x" })
group("attach x.sock --write --policy x", "want one of --eval and --policy", { "--eval x" })
group("tokenize " .. model .. " --decode", "not with --decode", { "--specials", "--bos" })
group("tokenize " .. model .. " --lines", "--lines writes JSON anyway", { "--json" })
group("render " .. model .. " --probe", "not with --probe, which reads no conversation", { "--prepare" })
group("plan llama", "the model is a recipe itself", { "--recipe qwen3" })
group("pull smollm2", "of models of the hub, not of smollm2", { "--dir x", "--hub http://x", "--revision x", "--token-file x", "--timeout 3" })
for _, option in ipairs { "--name", "--policy", "--keys", "--socket", "--recipe", "--weights", "--kv-scales",
  "--disk-cache", "--tls-cert" } do
  refused[#refused + 1] = { ("serve %s %s ''"):format(model, option), option:sub(3) .. ": an empty text" }
end
for _, args in ipairs { "run '' --ids 1", "score '' --ids 1", "serve ''", "plan ''", "pack ''", "render ''", "tokenize ''" } do
  refused[#refused + 1] = { args, "MODEL: an empty text" }
end
for _, row in ipairs { { "bench serve " .. model .. " --prefix-share 2", "--prefix-share: '2', want a number from 0 to 1" },
  { "simulate --prefix-share 2", "--prefix-share: '2', want a number from 0 to 1" },
  { "calibrate " .. model .. " --ids 1 --out x --act int8", "--act: no such option" },
  { "calibrate " .. model .. " --ids 1 --out x --kv fp8", "--kv: no such option" },
  { "check '' ", "FILE: an empty text" }, { "pull ''", "NAME: an empty text" }, { "attach ''", "SOCKET: an empty text" },
  { "run " .. model .. " --file ''", "file: an empty text" }, { "run " .. model .. " --prompt ''", "the prompt is empty" }, { "chat --url ''", "--url: '', want http://HOST:PORT" } } do
  refused[#refused + 1] = row
end
refused[#refused + 1] = { "-e 1 2", "-e TEXT takes no arguments" }
for _, row in ipairs(refused) do
  local code, out = call(row[1])
  verdict(code == 2 and out:find(row[2], 1, true), ("%s\n  exit code %s: %s\n  want 2: %s"):format(row[1], tostring(code), out, row[2]))
end

-- weights and recipes that would be passed over: failures of the load, for every verb and from Lua
for _, verb in ipairs { "run %s --ids 1", "score %s --ids 1", "plan %s", "serve %s --port 0 --socket none", "bench serve %s --requests 1",
  "pack %s -o " .. dir .. "/x.perilune", "calibrate %s --ids 1 --out " .. dir .. "/x.json", "chat %s" } do
  local code, out = call(verb:format(model) .. " --weights " .. gguf)
  verdict(code == 1 and out:find("weights: " .. gguf .. ", but " .. model .. " is no recipe", 1, true), verb .. ": " .. out)
  code, out = call(verb:format "recipes/llama.lua" .. " --recipe qwen3 --weights " .. model)
  verdict(code == 1 and out:find("recipe: qwen3, but recipes/llama.lua is a recipe itself", 1, true), verb .. ": " .. out)
end
for args, want in pairs { ["--kernel rope --format fp8"] = "format: fp8, which is none of rope",
  ["--kernel attend,rope --format q4_0"] = "format: q4_0, which is none of attend,rope",
  ["--kernel attend,embed --act int8"] = "act: int8, but only linear and layers have one",
  ["--kernel sample --rows 3 --seconds 0"] = "nothing to measure" } do
  local code, out = call("bench kernels --bytes 100000 " .. args)
  verdict(code == 1 and out:find(want, 1, true), args .. ": " .. out)
end
for args, n in pairs { ["--kernel attend,rope --format fp8"] = 2, ["--kernel embed,attend --format q8_0,fp8"] = 2 } do
  local code, out = call("bench kernels --bytes 100000 --rows 1 --threads 1 --seconds 0 --json " .. args)
  verdict(code == 0 and select(2, out:gsub('"shape"', "")) >= n, args .. ": " .. out)
end
-- a recipe by its name goes with weights as a recipe's file does
for _, name in ipairs { "llama", "recipes/llama.lua" } do
  local code, out = call(("run %s --weights %s --ids 333 --max-tokens 2 --act f32 --json"):format(name, model))
  verdict(code == 0 and out:find('"tokens":[262,71]', 1, true), name .. ": " .. out)
end

-- and with what they need they have an effect
files.write(dir .. "/trace", '{"t":0,"input":5,"output":3}\n{"t":0,"input":5,"output":3,"tenant":1}\n')
local one, a = call("run " .. model .. " --ids 333 --max-tokens 8 --temperature 2 --seed 5 --json")
local two, b = call("run " .. model .. " --ids 333 --max-tokens 8 --temperature 2 --seed 6 --json")
verdict(one == 0 and two == 0 and a:match '"tokens":%b[]' ~= b:match '"tokens":%b[]', "--seed: " .. a .. b)
for _, args in ipairs { "simulate --requests 50 --prefix-share 1 --prefixes 2 --prefix-tokens 64 --seed 4 --lengths fixed",
  "simulate --requests 50 --tenants 2 --window 0.01", "simulate --window 0.01 --trace " .. dir .. "/trace",
  "bench serve " .. model .. " --requests 3 --in 5 --out 3 --prefix-share 1 --prefixes 1 --prefix-tokens 3 --context 64",
  "tokenize " .. model .. " --specials --bos --json", "plan llama --weights " .. model } do
  local code, out = call(args)
  verdict(code == 0, args .. ": " .. out)
end

os.execute("rm -r " .. dir)
verdicts.done()
