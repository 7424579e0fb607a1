-- kv_verify: pages that a sequence was given and still holds pass, and flags that are set stay. What a page in other
-- hands does is in tests/c/tag.c, where tags can be changed.
local ffi = require "ffi"

return function(T)
  local C, err = T.C, T.err

  return {
    check = function()
      for _, path in ipairs(T.paths) do
        local dev, kv = T.dev(path, 1), ffi.new "pl_kv *[1]"
        local s = C.pl_dev_stream(dev)
        T.try(C.pl_kv_open(kv, dev, ffi.new("pl_kv_opts", { layers = 1, heads = 1, key_dim = 4, value_dim = 4,
          page = 16, dtype = C.PL_F32, check = C.PL_CHECK_PAGES, n_pages = 40 }), err))
        for i = 1, 3 do T.try(C.pl_kv_seq_new(kv[0], i, ffi.new "int32_t[1]", err)) end
        T.try(C.pl_kv_begin(kv[0], ffi.new("pl_span[3]", { { 2, 300 }, { 0, 1 }, { 1, 33 } }), 3, err))
        local bad = T.tensor(dev, { 3 }, "i32", { 0, 1, 0 })
        T.try(C.pl_kv_verify(s, bad.t, kv[0], err))
        local got = ffi.cast("int32_t *", bad.t[0].data)
        T.check(got[0] == 0 and got[1] == 1 and got[2] == 0, "kv_verify: flags %d %d %d, want 0 1 0", got[0],
          got[1], got[2])
        T.expect_error(C.pl_kv_verify(s, T.tensor(dev, { 2 }, "i32", { 0, 0 }).t, kv[0], err), "PL_ESHAPE",
          "kv_verify: bad has 2 flags, want i32 for the step's 3 spans", "flags")
        T.expect_error(C.pl_kv_verify(s, T.tensor(dev, { 3 }).t, kv[0], err), "PL_ESHAPE", "kv_verify: bad has 3",
          "format")
        C.pl_kv_abort(kv[0])
        T.release()
        C.pl_kv_close(kv[0])
      end
    end,
  }
end
