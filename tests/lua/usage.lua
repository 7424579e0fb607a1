-- What a wrong call is told, for every verb and each of its options: one line that names the option and what it wants,
-- where to read more, exit code 2, nothing on standard output. And help, in all the ways to ask for it.
-- luacheck: no max line length
local args, cli = require "pl.cli.args", require "pl.cli"
local perilune = (os.getenv "PL_BUILD" or "build") .. "/perilune"
local verdicts = dofile "tests/verdicts.lua"
local ok, eq = verdicts.ok, verdicts.eq
local files = dofile "tests/files.lua"
local MODEL = "tests/data/tiny-llama"

local function call(words)
  local errors = os.tmpname()
  local p = io.popen(("%s %s </dev/null 2>%s; echo \" $?\""):format(perilune, words, errors))
  local out, code = p:read("*a"):match "^(.*) (%d+)\n$"
  p:close()
  local f = io.open(errors)
  local said = f:read "*a"
  f:close()
  os.remove(errors)
  return tonumber(code), out, said
end

-- a wrong call: exactly these two lines
local function wrong(words, called, message)
  local code, out, said = call(words)
  eq(code, 2, words .. ": exit code")
  eq(out, "", words .. ": standard output")
  local help = called == "perilune" and "perilune help" or "perilune help " .. called:match "^perilune (.*)$"
  eq(said, ("%s: %s\ntry: %s\n"):format(called, message, help), words)
end

-- Every option of every verb, by the parser itself ----------------------------------------------------------------------

local function wants(verb, words, message)
  local o, _, said = args.read(verb, words)
  ok(o == nil and said and said:sub(1, #message) == message and not said:find "\n",
    ("%s %s: %s\n  want: %s"):format(verb.name, table.concat(words, " "), tostring(said), message))
end

local n_options = 0
local function sweep(verb, p, before)
  local function with(...)
    local words = { unpack(before) }
    for _, w in ipairs { ... } do words[#words + 1] = w end
    return words
  end
  wants(verb, with "--no-such", "--no-such: no such option")
  wants(verb, with "-5", "-5: no such option")
  for _, o in ipairs(p._options) do
    local name = o._aliases[#o._aliases]
    n_options = n_options + 1
    if name == "--help" then
      local _, shown = args.read(verb, with(name))
      ok(shown and shown:find("Usage: perilune " .. verb.name, 1, true), verb.name .. " " .. name)
    elseif o._maxargs == 0 then
      wants(verb, with(name .. "=1"), name .. ": '1', want it without a value")
      wants(verb, with(name, name), name .. ": given twice")
    else
      wants(verb, with(name), name .. ": no value, want ")
      wants(verb, with(name, "--help-me"), name .. ": no value, want ")
      wants(verb, with(name, "--no-such", "5"), name .. ": no value, want ")
      -- the same in one word and in two
      local one, _, why_one = args.read(verb, with(name .. "=-1"))
      local two, _, why_two = args.read(verb, with(name, "-1"))
      eq(one == nil, two == nil, verb.name .. " " .. name .. " -1")
      eq(why_two, why_one, verb.name .. " " .. name .. " -1")
      ok(not why_one or why_one:find(name .. ": '-1', want ", 1, true) or why_one:find "^%u+: nothing given, want ",
        verb.name .. " " .. name .. " -1: " .. tostring(why_one))
      if o._convert and name ~= "--revision" then -- of which -1 and x may be
        for _, value in ipairs { "-1e300", "nan", "x", "" } do
          local _, _, why = args.read(verb, with(name .. "=" .. value, unpack(p._arguments[1] and { "m" } or {})))
          -- a list of names is looked at when it is known which there are
          ok(not why and o._argname == "LIST" or why and why:find("^" .. name:gsub("%-", "%%-") .. ": '.*', want "),
            ("%s %s=%s: %s"):format(verb.name, name, value, tostring(why)))
        end
      end
    end
  end
  local most, arguments = 0, {}
  for _, a in ipairs(p._arguments) do most = most + a._maxargs end
  if most < 100 then
    for i = 1, most + 1 do arguments[i] = "a" .. i end
    wants(verb, with(unpack(arguments)), ("'a%d': one argument too many, want "):format(most + 1))
  end
  local first = p._arguments[1]
  if first and first._minargs > 0 then
    wants(verb, before, first._name:upper() .. ": nothing given, want ")
    wants(verb, with "", first._name:upper() .. ": an empty text")
  end
end

local names = {}
for name in select(2, call "help"):gmatch "\n  perilune (%l+)" do names[#names + 1] = name end
ok(#names == 14, "help names the verbs: " .. table.concat(names, " "))
for _, name in ipairs(names) do
  local verb = require("pl.cli." .. name)
  local p = args.parser(verb)
  if #p._commands > 0 then
    for _, c in ipairs(p._commands) do sweep(verb, c, { c._name }) end
    wants(verb, {}, "nothing given, want one of ")
    wants(verb, { "no-such" }, "'no-such', want one of ")
  else
    sweep(verb, p, {})
  end
end
ok(n_options > 150, "options: " .. n_options)
ok(type(cli.main) == "function", "the command line")

-- As they are typed -------------------------------------------------------------------------------------------------------

wrong("run", "perilune run", "MODEL: nothing given, want a GGUF file, a Hugging Face directory, a packed file (FILE.perilune),"
  .. " or a recipe (FILE.lua) with --weights")
wrong("run x --max-tokens -1", "perilune run", "--max-tokens: '-1', want a whole number of at least 0")
wrong("run x --seed -1", "perilune run", "--seed: '-1', want a whole number from 0 to 9007199254740992")
wrong("run x --max-token 5", "perilune run", "--max-token: no such option, did you mean '--max-tokens'?")
wrong("run x --temp 5", "perilune run", "--temp: no such option, did you mean '--temperature'?")
wrong("run x --prompt --josn", "perilune run", "--prompt: no value, want TEXT (--prompt=--josn if that is it)")
wrong("run x --kv fp7", "perilune run", "--kv: 'fp7', want one of f32 bf16 fp8")
wrong("run x --ids 1 --ids 2", "perilune run", "--ids: given twice, want it once")
wrong("run x", "perilune run", "no text: want one of --prompt, --file and --ids (--file - is standard input)")
wrong("simulate --rate -1", "perilune simulate", "--rate: '-1', want a number from 0 to 1e+15")
wrong("simulate x", "perilune simulate", "'x': one argument too many, want options only")
wrong("bench", "perilune bench", "nothing given, want one of serve kernels models")
wrong("bench servr", "perilune bench", "'servr', did you mean 'serve'?")
wrong("bench serve --clients 1,-2", "perilune bench serve", "--clients: '-2', want a whole number from 1 to 10000")
wrong("pack x -o", "perilune pack", "--out: no value, want FILE")
wrong("serve x --keys ''", "perilune serve", "--keys: an empty text, want FILE")
wrong("run x --top-k " .. ("9"):rep(4000) .. "x", "perilune run", "--top-k: '" .. ("9"):rep(57)
  .. "...', want a whole number of at least 0")
wrong("run x --top-k '\27[2J'", "perilune run", "--top-k: '\\27[2J', want a whole number of at least 0")
wrong("rnu", "perilune", "no verb 'rnu', did you mean 'run'?")
wrong("help rnu", "perilune", "no verb 'rnu', did you mean 'run'?")
for _, path in ipairs { MODEL, MODEL .. "/model.safetensors", "tests/data/tiny-llama-gguf/model.gguf" } do
  wrong(path, "perilune", path .. ": a model, want a verb before it: run, chat, serve, plan ...")
end
wrong("''", "perilune", "an empty text, want a verb or a Lua file")
wrong("--versoin", "perilune", "--versoin: no such option, did you mean '--version'?")
ok(select(3, call "xyzzyxyzzy"):find("no verb 'xyzzyxyzzy', want one of run chat serve", 1, true), "a verb that is near none")

-- a value that begins with "-" is one
do
  local _, one = call("tokenize " .. MODEL .. " --json --bos")
  local code, two = call("score " .. MODEL .. " --prompt '- a list' --top 1 --json")
  ok(code == 0 and two:find '"tokens"', "a text that begins with '-': " .. one .. two)
  code, two = call("score " .. MODEL .. " --prompt=--json --top 1 --json")
  ok(code == 0 and two:find '"tokens"', "a text that looks like an option: " .. two)
  code, two = call("score --top 1 --ids 1 -- " .. MODEL)
  ok(code == 0 and two:find "nll", "behind --: arguments: " .. two)
end

-- help: on standard output, the same by each way
local all, general = {}, select(2, call "help")
for _, name in ipairs(names) do all[#all + 1] = name end
for _, name in ipairs { "bench serve", "bench kernels", "bench models" } do all[#all + 1] = name end
for _, name in ipairs(all) do
  local code, out, said = call(name .. " --help")
  ok(code == 0 and said == "" and out:find("Usage: perilune " .. name, 1, true), name .. " --help: " .. out .. said)
  for _, way in ipairs { "help " .. name, name .. " -h", name .. " --no-such --help" } do
    local also, text = call(way)
    ok(also == 0 and text == out, way .. ": as --help")
  end
end
for _, way in ipairs { "--help", "-h", "help help", "help --help" } do
  local code, out = call(way)
  ok(code == 0 and out == general, way .. ": as help")
end

-- check takes models, and says what it wants
local dir = os.tmpname()
os.remove(dir)
os.execute("mkdir " .. dir)
files.write(dir .. "/text.txt", "hello\n")
files.write(dir .. "/deploy.lua", 'return { model = "x" }\n')
os.execute(("cp tests/data/tiny-llama-gguf/model.gguf %s/cut.gguf && truncate -s 5000 %s/cut.gguf"):format(dir, dir))
os.execute(("cp tests/data/tiny-llama-gguf/model.gguf %s/no-suffix; ln -s loop %s/loop"):format(dir, dir))
local LLAMA = ": recipe 'llama', "
for _, row in ipairs { { MODEL, 0, MODEL .. LLAMA .. "39 weights" },
  { "tests/data/tiny-llama-gguf/model.gguf", 0, "model.gguf" .. LLAMA .. "21 weights" },
  { dir .. "/no-suffix", 0, "/no-suffix" .. LLAMA .. "21 weights" },
  { MODEL .. "/model.safetensors", 0, LLAMA .. "39 weights" },
  { MODEL .. " --recipe llama", 0, LLAMA .. "39 weights" },
  { MODEL .. " --recipe qwen3", 1, "the checkpoint has no weight" },
  { dir .. "/cut.gguf", 1, "(in cut.gguf)" }, { dir, 1, "is no model: it has no config.json" },
  { dir .. "/text.txt", 1, "text.txt: neither a model nor Lua\n         want a recipe or a deployment file (FILE.lua), a GGUF" },
  { dir .. "/loop", 1, "loop: Too many levels of symbolic links" },
  { dir .. "/none.gguf", 1, "neither a file nor one of: " },
  { "llama --recipe qwen3", 2, "perilune check: --recipe: wants a model" },
} do
  local code, out, said = call("check " .. row[1])
  ok(code == row[2] and (out .. said):find(row[3], 1, true), ("check %s: %d %s%s"):format(row[1], code, out, said))
end

-- the other verbs, with files that they cannot use
local none = "No such file or directory\n         want a GGUF file, a packed one, or a Hugging Face directory; `perilune pull "
for _, verb in ipairs { "run %s --ids 1", "score %s --ids 1", "chat %s", "tokenize %s", "render %s", "plan %s",
  "pack %s -o " .. dir .. "/x.perilune", "serve %s", "bench serve %s", "bench models %s", "calibrate %s --ids 1 --out x" } do
  for _, name in ipairs { "smollm2", "org/repo" } do
    local code, _, said = call(verb:format(name))
    ok(code == 1 and said:find("perilune: " .. name .. ": " .. none .. name .. "` fetches one", 1, true), verb .. said)
  end
end
for _, verb in ipairs { "run %s --ids 1", "score %s --ids 1", "chat %s", "pack %s", "bench serve %s" } do
  local code, _, said = call(verb:format(dir .. "/deploy.lua"))
  ok(code == 1 and said:find('deploy.lua is no recipe: it does not require "pl"', 1, true), verb .. said)
end
for _, row in ipairs { { "bench models " .. dir .. "/text.txt", "text.txt: not a GGUF file" },
  { "tokenize " .. dir .. "/text.txt", dir .. "/text.txt" } } do
  local code, _, said = call(row[1])
  ok(code == 1 and said:find(row[2], 1, true), row[1] .. ": " .. said)
end
for _, way in ipairs { "tokenize ", "render --probe " } do -- known by how it begins
  local code, _, said = call(way .. dir .. "/no-suffix")
  ok(code == 0 and said == "" or said:find("no chat template", 1, true), way .. "of a GGUF file of another name: " .. said)
end
os.execute("rm -r " .. dir)

verdicts.done()
