# Every file under tests/c is a Check suite of its own (under tests/c/x86: kernels of AVX-512, made of AVX2's instructions);
# every file under tests/lua and tests/e2e a Lua script that ends with a non-zero status if an assertion fails. Tests find
# ../shared (goldens, real tokenizers) where it is.
# A sanitizer takes ten to fifty times as long.
set(LIMIT 600)
set(SLOWER 1)
if(PL_SANITIZE)
  set(LIMIT 7200)
  set(SLOWER 10)
endif()
pkg_check_modules(CHECK REQUIRED IMPORTED_TARGET check)
file(GLOB C_TESTS CONFIGURE_DEPENDS tests/c/*.c)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  file(GLOB X86_TESTS CONFIGURE_DEPENDS tests/c/x86/*.c)
  set_source_files_properties(${X86_TESTS} PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c")
  list(APPEND C_TESTS ${X86_TESTS})
endif()
set_source_files_properties(tests/c/tiles.c PROPERTIES COMPILE_OPTIONS -O1) # many kernels in plain C
foreach(f ${C_TESTS})
  get_filename_component(name ${f} NAME_WE)
  add_executable(test_${name} ${f})
  add_dependencies(test_${name} generated)
  target_include_directories(test_${name} PRIVATE tests)
  target_link_libraries(test_${name} PRIVATE pl PkgConfig::CHECK)
  target_compile_options(test_${name} PRIVATE -Wno-conversion ${UNROLLED_FLAGS}) # some hold kernels
  target_compile_definitions(test_${name} PRIVATE PL_SOURCE_DIR="${CMAKE_SOURCE_DIR}" PL_BINARY_DIR="${CMAKE_BINARY_DIR}")
  add_test(NAME c/${name} COMMAND test_${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  # Check's own limit of 4 s a test is short on a busy machine
  set_tests_properties(c/${name} PROPERTIES ENVIRONMENT "CK_DEFAULT_TIMEOUT=${LIMIT};CK_TIMEOUT_MULTIPLIER=${SLOWER}" TIMEOUT ${LIMIT})
endforeach()

# The same interpreter as the program's, running one script with `pl` at hand.
add_executable(pl-lua tests/host.c core/host.c core/lua_host.c ${GEN}/embedded.c)
add_dependencies(pl-lua generated)
target_link_libraries(pl-lua PRIVATE -Wl,--whole-archive pl -Wl,--no-whole-archive PkgConfig::LUAJIT PkgConfig::EDIT ${CJSON})
target_include_directories(pl-lua PRIVATE core)
target_link_options(pl-lua PRIVATE -Wl,--dynamic-list=${CMAKE_SOURCE_DIR}/core/exports.txt)
file(GLOB LUA_TESTS CONFIGURE_DEPENDS tests/lua/*.lua tests/e2e/*.lua)
foreach(f ${LUA_TESTS})
  get_filename_component(name ${f} NAME_WE)
  get_filename_component(dir ${f} DIRECTORY)
  get_filename_component(dir ${dir} NAME)
  add_test(NAME ${dir}/${name} COMMAND pl-lua ${f} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${dir}/${name} PROPERTIES ENVIRONMENT "PL_BUILD=${CMAKE_BINARY_DIR};PL_SANITIZED=${PL_SANITIZE}" TIMEOUT ${LIMIT})
endforeach()
add_test(NAME fuzz/templates COMMAND pl-lua tests/fuzz/templates.lua 3000 WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
set_tests_properties(fuzz/templates PROPERTIES ENVIRONMENT "PL_SANITIZED=${PL_SANITIZE}" TIMEOUT ${LIMIT})
add_test(NAME ops COMMAND pl-lua tests/ops/run.lua WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
include(tests/gpu/gpu.cmake)
# OpenAI's own client and curl against the server, on SmolLM2
add_test(NAME e2e/openai COMMAND tests/e2e/python.sh openai_client.py WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
set_tests_properties(e2e/openai PROPERTIES ENVIRONMENT "PL_BUILD=${CMAKE_BINARY_DIR}" TIMEOUT ${LIMIT})
