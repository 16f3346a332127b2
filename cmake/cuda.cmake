# The CUDA backend (device/cuda). It is built into sn_device when nvcc is found, and chosen at run time; without nvcc it
# is absent, and device/device.c reports that. The tests use a stand-in for CUDA (tests/support/cuda_stand_in), which
# needs a C++ compiler for the kernels but no toolkit. The top CMakeLists.txt includes this file after tests/, because
# this file adds the stand-in to test programs.
option(SN_CUDA "build the CUDA backend where nvcc is found" ON)
set(SN_CUDA_ARCHITECTURES "80;86;89;90" CACHE STRING
  "compute capabilities to compile for; the last one as PTX as well, for newer devices")
set(SN_CUDA_KERNELS linear products rowwise attention flash latent choose delta grad experts expert_products)

file(GLOB sn_cuda_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/device/cuda/*.c)

if(SN_CUDA)
  find_program(SN_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda/bin)
endif()
if(SN_CUDA AND SN_NVCC)
  get_filename_component(sn_cuda_root ${SN_NVCC} REALPATH)
  get_filename_component(sn_cuda_root ${sn_cuda_root}/../.. REALPATH)
  set(sn_cuda_target ${sn_cuda_root}/targets/${CMAKE_SYSTEM_PROCESSOR}-linux)
  find_path(SN_CUDA_INCLUDE cublas_v2.h HINTS ${sn_cuda_root}/include ${sn_cuda_target}/include REQUIRED)
  find_library(SN_CUDART cudart_static HINTS ${sn_cuda_root}/lib64 ${sn_cuda_target}/lib REQUIRED)
  get_filename_component(sn_cuda_libraries ${SN_CUDART} DIRECTORY)

  set(sn_cuda_targets "")
  foreach(arch ${SN_CUDA_ARCHITECTURES})
    list(APPEND sn_cuda_targets -gencode arch=compute_${arch},code=sm_${arch})
  endforeach()
  list(GET SN_CUDA_ARCHITECTURES -1 newest)
  list(APPEND sn_cuda_targets -gencode arch=compute_${newest},code=compute_${newest})
  # Compressed kernels: every program has a quarter of the size. Drivers for CUDA 13 decompress them, older ones may not.
  execute_process(COMMAND ${SN_NVCC} --version OUTPUT_VARIABLE sn_nvcc_version ERROR_QUIET)
  set(compressed "")
  if(sn_nvcc_version MATCHES "release ([0-9]+)" AND CMAKE_MATCH_1 GREATER_EQUAL 13)
    set(compressed --compress-mode=size)
  endif()
  set(sn_cuda_objects "")
  foreach(kernels ${SN_CUDA_KERNELS})
    set(object ${CMAKE_BINARY_DIR}/device_cuda_${kernels}.o)
    add_custom_command(OUTPUT ${object}
      COMMAND ${CMAKE_C_COMPILER_LAUNCHER} ${SN_NVCC} -std=c++17 -O3 -lineinfo -Werror all-warnings ${sn_cuda_targets} ${compressed}
        -I${CMAKE_SOURCE_DIR} -Xcompiler=-fPIC,-Wall,-fno-exceptions,-fno-threadsafe-statics -MD -MF ${object}.d
        -c ${CMAKE_SOURCE_DIR}/device/cuda/kernels_${kernels}.cu -o ${object}
      DEPENDS ${CMAKE_SOURCE_DIR}/device/cuda/kernels_${kernels}.cu DEPFILE ${object}.d
      COMMENT "Compiling CUDA kernels: ${kernels}" VERBATIM)
    list(APPEND sn_cuda_objects ${object})
  endforeach()

  target_sources(sn_device PRIVATE ${sn_cuda_sources} ${sn_cuda_objects})
  set_source_files_properties(${sn_cuda_objects} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
  target_include_directories(sn_device SYSTEM PRIVATE ${SN_CUDA_INCLUDE})
  target_compile_definitions(sn_device PRIVATE SN_HAVE_CUDA SN_CUDA_LIBRARIES="${sn_cuda_libraries}")
  # The CUDA runtime is linked statically, so that the program starts on machines without NVIDIA software.
  target_link_libraries(sn_device PUBLIC ${SN_CUDART} ${CMAKE_DL_LIBS} rt)
  message(STATUS "CUDA backend: built with ${SN_NVCC} for ${SN_CUDA_ARCHITECTURES} and newer")
else()
  message(STATUS "CUDA backend: absent, nvcc was not found (or SN_CUDA is off)")
endif()

# Tests: the host side of the backend and its kernels, over the stand-in.

if(SN_TESTS)
  include(CheckLanguage)
  check_language(CXX)
  if(NOT CMAKE_CXX_COMPILER)
    message(FATAL_ERROR "the tests run the CUDA kernels on the CPU, which needs a C++ compiler: install g++, or "
                        "configure with -DSN_TESTS=OFF")
  endif()
  enable_language(CXX)
  set(stand_in ${CMAKE_SOURCE_DIR}/tests/support/cuda_stand_in)
  set(sn_cuda_host ${sn_cuda_sources})
  list(FILTER sn_cuda_host EXCLUDE REGEX "/(cublas|nvml)\\.c$") # the stand-in brings its own
  file(GLOB stand_in_sources CONFIGURE_DEPENDS ${stand_in}/*.c)
  set(emulated "")
  foreach(kernels ${SN_CUDA_KERNELS})
    set(copy ${CMAKE_BINARY_DIR}/device_cuda_${kernels}.cc) # the suffix selects the C++ compiler
    file(WRITE ${copy}.in "#include \"device/cuda/kernels_${kernels}.cu\"\n")
    configure_file(${copy}.in ${copy} COPYONLY)
    list(APPEND emulated ${copy})
  endforeach()
  add_library(sn_cuda_stand_in OBJECT ${sn_cuda_host} ${CMAKE_SOURCE_DIR}/device/device.c ${stand_in_sources}
    ${emulated})
  target_include_directories(sn_cuda_stand_in BEFORE PRIVATE ${stand_in}/include)
  target_compile_definitions(sn_cuda_stand_in PRIVATE SN_HAVE_CUDA)
  target_link_libraries(sn_cuda_stand_in PRIVATE sn_device)
  # Where cuBLAS is found: the code, beside a library of a version that no machine has.
  add_library(fake_cublas SHARED ${CMAKE_SOURCE_DIR}/tests/support/fake_cublas/cublas.c)
  add_library(fake_cublaslt SHARED ${CMAKE_SOURCE_DIR}/tests/support/fake_cublas/cublaslt.c)
  target_link_libraries(fake_cublas PRIVATE fake_cublaslt)
  set_target_properties(fake_cublas PROPERTIES OUTPUT_NAME cublas)
  set_target_properties(fake_cublaslt PROPERTIES OUTPUT_NAME cublasLt)
  foreach(fake fake_cublas fake_cublaslt)
    target_include_directories(${fake} BEFORE PRIVATE ${stand_in}/include ${CMAKE_SOURCE_DIR})
    set_target_properties(${fake} PROPERTIES SOVERSION 99 COMPILE_OPTIONS -fvisibility=default
      LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fake_cublas)
  endforeach()
  add_dependencies(test_device_cuda_cublas fake_cublas)
  target_sources(test_device_cuda_cublas PRIVATE ${CMAKE_SOURCE_DIR}/device/cuda/cublas.c)
  target_include_directories(test_device_cuda_cublas BEFORE PRIVATE ${stand_in}/include)
  target_compile_definitions(test_device_cuda_cublas PRIVATE CUBLAS_VER_MAJOR=99 FAKE_CUBLAS="${CMAKE_BINARY_DIR}/fake_cublas")
  # Removes the project-wide flags that C++ does not have.
  get_target_property(options sn_cuda_stand_in COMPILE_OPTIONS)
  list(REMOVE_ITEM options -Wstrict-prototypes)
  set_target_properties(sn_cuda_stand_in PROPERTIES COMPILE_OPTIONS "${options}")
  # The emulation switches between stacks, which sanitizers do not support: kernels are compiled without sanitizers, but
  # with the calls that ThreadSanitizer inserts before loads and stores, which end in watch.c.
  set_source_files_properties(${stand_in}/threads.c ${stand_in}/mma.c ${stand_in}/watch.c ${stand_in}/watch_blocks.c
    PROPERTIES COMPILE_OPTIONS -fno-sanitize=all)
  set(watched -fsanitize=thread)
  if(SN_SANITIZE MATCHES thread)
    set(watched "")
    set_source_files_properties(${stand_in}/watch.c ${stand_in}/memory.c PROPERTIES COMPILE_DEFINITIONS SN_THREAD_SANITIZER)
  endif()
  set(emulated_options -fno-sanitize=all ${watched} -fno-exceptions -fno-rtti -fno-threadsafe-statics -Wno-conversion -Wno-shadow
    -Wno-unknown-pragmas)
  set_source_files_properties(${emulated} ${stand_in}/mistakes.cc ${stand_in}/matrices.cc PROPERTIES COMPILE_OPTIONS "${emulated_options}")
  add_library(sn_cuda_test_kernels OBJECT ${stand_in}/mistakes.cc ${stand_in}/matrices.cc)
  target_include_directories(sn_cuda_test_kernels BEFORE PRIVATE ${stand_in}/include ${CMAKE_SOURCE_DIR})
  set_target_properties(sn_cuda_test_kernels PROPERTIES COMPILE_OPTIONS "${options}")
  target_link_libraries(test_device_cuda PRIVATE sn_cuda_test_kernels)
  foreach(program test_device_cuda test_emulated emulated_swarm emulated_swarm-node emulated_bench_cuda)
    target_link_libraries(${program} PRIVATE sn_cuda_stand_in)
    target_include_directories(${program} PRIVATE ${stand_in}/include)
    set_target_properties(${program} PROPERTIES LINKER_LANGUAGE C) # no part of the C++ library is used
  endforeach()
endif()
