# cuda.cmake: the plug-in libperilune_cuda.so, wherever nvcc is found. Each .cu file is compiled for the three data
# centre generations; the runtime library is linked in, so the plug-in needs nothing beside the driver.
find_program(NVCC nvcc HINTS /usr/local/cuda/bin $ENV{CUDA_HOME}/bin)
if(NOT PL_CUDA OR PL_SANITIZE)
  message(STATUS "CUDA plug-in: switched off")
  return()
elseif(NOT NVCC)
  message(STATUS "CUDA plug-in: not built, there is no nvcc on PATH or in /usr/local/cuda")
  return()
endif()
message(STATUS "CUDA plug-in: ${NVCC}")

set(NVCC_FLAGS -std=c++17 -O2 -lineinfo -fmad=false -Xcompiler -fPIC,-fvisibility=hidden,-fno-strict-aliasing
  -I${CMAKE_SOURCE_DIR}/kernels/cuda -I${CMAKE_SOURCE_DIR}/core -I${GEN})
foreach(arch 80 90a 100a)
  list(APPEND NVCC_FLAGS -gencode arch=compute_${arch},code=sm_${arch})
endforeach()
add_library(plugin_base OBJECT core/base.c)
set(NVCC_OBJECTS $<TARGET_OBJECTS:plugin_base>)
file(GLOB CU CONFIGURE_DEPENDS kernels/cuda/*.cu)
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/cuda)
foreach(f ${CU})
  get_filename_component(name ${f} NAME_WE)
  set(object ${CMAKE_BINARY_DIR}/cuda/${name}.o)
  add_custom_command(OUTPUT ${object}
    COMMAND ${CMAKE_SOURCE_DIR}/kernels/cuda/nvcc.sh ${NVCC} ${NVCC_FLAGS} -MD -MF ${object}.d -c ${f} -o ${object}
    DEPENDS ${f} ${GEN}/ops_backend.h ${CMAKE_SOURCE_DIR}/kernels/cuda/nvcc.sh
    DEPFILE ${object}.d COMMENT "nvcc ${name}.cu")
  list(APPEND NVCC_OBJECTS ${object})
endforeach()
set(CUDA_PLUGIN ${CMAKE_BINARY_DIR}/libperilune_cuda.so)
add_custom_command(OUTPUT ${CUDA_PLUGIN}
  COMMAND ${NVCC} -shared -cudart static -Xlinker -z,defs,-z,nodelete,--exclude-libs,ALL
    -Xlinker --version-script=${CMAKE_SOURCE_DIR}/kernels/cuda/exports.txt -o ${CUDA_PLUGIN} ${NVCC_OBJECTS}
  DEPENDS ${NVCC_OBJECTS} ${CMAKE_SOURCE_DIR}/kernels/cuda/exports.txt COMMAND_EXPAND_LISTS COMMENT "libperilune_cuda.so")
add_custom_target(perilune_cuda ALL DEPENDS ${CUDA_PLUGIN})
add_dependencies(perilune_cuda generated)

# The wrappers' self-test for a device (tests/gpu/run); built on demand.
add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/cuda/selftest
  COMMAND ${NVCC} ${NVCC_FLAGS} -Werror all-warnings -cudart static -o ${CMAKE_BINARY_DIR}/cuda/selftest
    ${CMAKE_SOURCE_DIR}/tests/gpu/selftest.cu
  DEPENDS tests/gpu/selftest.cu kernels/cuda/ptx.cuh COMMENT "gpu_selftest")
add_custom_target(gpu_selftest DEPENDS ${CMAKE_BINARY_DIR}/cuda/selftest)
install(FILES ${CUDA_PLUGIN} DESTINATION lib/perilune)
