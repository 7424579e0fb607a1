-- A deployment file: data only. It says what is served, in which sizes and to whom; `perilune check` and
-- `perilune plan` read it too. It sees gb, mb, k and env "NAME", and nothing else. Paths are relative to the file.
return {
  model = env "MODEL",           -- a GGUF file or a Hugging Face directory
  name = "smollm2",              -- what clients call it; default: the last part of the path
  -- recipe = "llama",           -- one of perilune's own, or a file; default: by the model's metadata
  -- chat_template = "x.jinja",  -- in place of the model's own

  pools = {
    all = {                      -- the recipe's pool; whatever a pool of a recipe may say but `weights`
      kv = "fp8",                -- half the memory of bf16,
      kv_scale = "token",        -- with scales that are found as tokens come
      batch = 16,                -- requests of one step
      tokens = 512,              -- tokens of one step,
      chunk = 64,                -- and of prompts in one in which requests decode: they wait for it
      context = 2 * k,           -- tokens of prompt and answer together
      queue = 256,               -- requests that may wait; more get 429
      -- cache_bytes = 2 * gb,   -- the whole cache, in place of batch x context
    },
  },
  tiers = {
    host_cache_bytes = 64 * mb,  -- pages that the cache gives up go on in host memory
    -- disk_cache = "/var/cache/perilune", disk_cache_bytes = 10 * gb,
  },
  integrity = { check = "pages+digest", on_mismatch = "abort_request", scrub = 0.01 },

  policy = "fair",               -- a name, or a file that returns function(s)                     (live)
  -- keys = "keys",              -- lines of KEY TENANT                                            (live)
  tenants = {                    -- shares of the policy `fair` and of places; default 1           (live)
    alice = { share = 2 },
  },

  address = "127.0.0.1", port = 8080,
  -- tls = { cert = "cert.pem", key = "key.pem" },
  -- socket = "perilune.sock",   -- for `perilune attach`; default: perilune-PORT.sock; "none": no socket
  limits = {
    body_bytes = 8 * mb, connections = 1024,
    headers_s = 10, idle_s = 60, -- seconds for a request's head, and for a connection without one
    drain_s = 30,                -- for requests under way after SIGTERM                           (live)
  },
  access_log = true,             -- lines of JSON on standard error; false, or a file             (live)
}
