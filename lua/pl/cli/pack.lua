-- perilune pack: a model as a file that the next start maps and uses as it lies.
local common, pack = require "pl.cli.common", require "pl.pack"
local M = { name = "pack", takes = "MODEL", about = "write a model as a file that starts at once" }

function M.options(p)
  p:argument("model", "A GGUF file, a Hugging Face directory, or a recipe (FILE.lua) with --weights.")
  p:option("-o --out", "The file, a name that ends in .perilune. Default: the model's name with that, beside it.")
    :argname "FILE"
  p:option("--recipe", "The recipe to use: a file, or one of perilune's own. Default: by the metadata.")
    :argname "FILE"
  p:option("--weights", "With a recipe as MODEL: the GGUF file or directory to load."):argname "PATH"
  p:option("--act", "What activations are rounded to, when the file is run and nothing else is said. Default: the"
    .. " recipe's."):choices(common.acts)
  p:option("--threads", "CPU threads; 0 = one per core."):convert(common.whole(0, 1024)):argname "N":default "0"
  p:option("--path", "CPU code path; one that the machine lacks is an error."):choices(common.paths):default "auto"
  common.json(p)
  p:epilog [[
The file is for this machine and build, and goes where the model went: run, serve, score, plan ... One that does not
fit any more (other layouts, another recipe, a changed model) is refused with the command that writes it again.
`perilune check FILE` compares every byte with its digest.]]
end

function M.run(o)
  local abi, json = require "pl.abi", require "pl.json"
  local started, progress = abi.C.pl_now_s(), nil
  if abi.C.pl_host_is_tty(2) then
    progress = function(k, n)
      io.stderr:write(("\r\27[K%d of %d weights%s"):format(k, n, k == n and "\n" or ""))
      io.stderr:flush()
    end
  end
  local path, bytes = pack.write(o.model, common.load_options(o, { out = o.out, progress = progress }))
  local took = abi.C.pl_now_s() - started
  if o.json then print(json.encode { path = path, bytes = bytes, seconds = took })
  else print(("%s: %s, %.1f s"):format(path, require("pl.plan").size(bytes), took)) end
  return 0
end

return M
