# The Intel XPU backend (device/xpu/). It is built where the headers of the Level Zero loader and a compiler from OpenCL C
# to SPIR-V are found; otherwise it is absent, and the program reports that. The Debian packages are libze-dev, clang-15,
# llvm-spirv-15 and spirv-tools.
pkg_check_modules(ZE IMPORTED_TARGET libze_loader)
find_program(SN_OCL_CLANG NAMES clang-15 clang-14)
find_program(SN_LLVM_SPIRV NAMES llvm-spirv-15 llvm-spirv-14)
find_program(SN_SPIRV_VAL spirv-val)
set(SN_XPU OFF)
if(ZE_FOUND AND SN_OCL_CLANG AND SN_LLVM_SPIRV AND SN_SPIRV_VAL)
  set(SN_XPU ON)
endif()

# sn_xpu_module(name source flag...): compiles ${name}.spv in the build folder. The device driver optimises the modules;
# clang's own passes are disabled, because spirv-val refuses some of their output.
set(SN_XPU_SPIRV ${CMAKE_BINARY_DIR}/xpu)
set(SN_XPU_MODULES "")
macro(sn_xpu_module name source)
  add_custom_command(OUTPUT ${SN_XPU_SPIRV}/${name}.spv
    COMMAND ${CMAKE_COMMAND} -E make_directory ${SN_XPU_SPIRV}
    COMMAND ${SN_OCL_CLANG} -target spir64 -x cl -cl-std=CL1.2 -O2 -Xclang -disable-llvm-passes -Wall -Werror -I${CMAKE_SOURCE_DIR} ${ARGN}
            -emit-llvm -c ${CMAKE_SOURCE_DIR}/device/xpu/${source} -o ${SN_XPU_SPIRV}/${name}.bc
    COMMAND ${SN_LLVM_SPIRV} --spirv-max-version=1.2 ${SN_XPU_SPIRV}/${name}.bc -o ${SN_XPU_SPIRV}/${name}.spv
    COMMAND ${SN_SPIRV_VAL} --target-env opencl1.2 ${SN_XPU_SPIRV}/${name}.spv
    DEPENDS ${CMAKE_SOURCE_DIR}/device/xpu/${source} ${CMAKE_SOURCE_DIR}/device/xpu/formulas.clh VERBATIM)
  list(APPEND SN_XPU_MODULES ${SN_XPU_SPIRV}/${name}.spv)
endmacro()

# The weight forms of xpu.h, each with the macros that linear.cl needs for it.
if(SN_XPU)
  sn_xpu_module(block block.cl)
  sn_xpu_module(grad grad.cl)
  foreach(form f32,32,NONE,0 f16,16,NONE,0 bf16,17,NONE,0 q4z,4,D,1 q4h,4,H,0 q4k,4,K,0 iq4d,4,D,2 iq4k,4,K,2
               mxfp4,4,E,3 q8d,8,D,0 q8h,8,H,0 q8k,8,K,0 q8s,8,S,0)
    string(REPLACE "," ";" parts ${form})
    list(GET parts 0 name)
    list(GET parts 1 bits)
    list(GET parts 2 scale)
    list(GET parts 3 mapped)
    sn_xpu_module(linear_${name} linear.cl -DBITS=${bits} -DSCALE=SCALE_${scale} -DMAPPED=${mapped} -DSUFFIX=${name})
  endforeach()
  set_source_files_properties(device/xpu/spirv.c PROPERTIES
    COMPILE_DEFINITIONS "SN_XPU_SPIRV=\"${SN_XPU_SPIRV}\"" OBJECT_DEPENDS "${SN_XPU_MODULES}")
  target_compile_definitions(sn_device PUBLIC SN_HAVE_XPU)
  target_link_libraries(sn_device PUBLIC PkgConfig::ZE)
else()
  message(STATUS "No XPU backend: it needs libze-dev, clang-15, llvm-spirv-15 and spirv-tools")
  get_target_property(sources sn_device SOURCES)
  list(FILTER sources EXCLUDE REGEX "device/xpu/")
  set_property(TARGET sn_device PROPERTY SOURCES ${sources})
endif()

# The test driver: Level Zero over OpenCL on the CPU; the real loader loads it. Without OpenCL, test_xpu* are skipped and
# name the missing package.
pkg_check_modules(OPENCL IMPORTED_TARGET OpenCL)
if(SN_XPU AND OPENCL_FOUND AND SN_TESTS)
  file(GLOB driver CONFIGURE_DEPENDS tests/support/ze_driver/*.c)
  add_library(ze_test_driver SHARED ${driver})
  target_link_libraries(ze_test_driver PRIVATE PkgConfig::OPENCL Threads::Threads)
  target_include_directories(ze_test_driver PRIVATE ${ZE_INCLUDE_DIRS})
  target_compile_definitions(ze_test_driver PRIVATE SN_LLVM_SPIRV="${SN_LLVM_SPIRV}" CL_TARGET_OPENCL_VERSION=300)
  set_target_properties(ze_test_driver PROPERTIES C_VISIBILITY_PRESET hidden)
  get_property(tests DIRECTORY tests PROPERTY BUILDSYSTEM_TARGETS)
  list(FILTER tests INCLUDE REGEX "^(test_xpu|test_emulated|emulated_)")
  foreach(test ${tests})
    target_link_libraries(${test} PRIVATE ${CMAKE_DL_LIBS})
    add_dependencies(${test} ze_test_driver)
    target_compile_definitions(${test} PRIVATE SN_ZE_TEST_DRIVER="$<TARGET_FILE:ze_test_driver>"
      SN_ZE_TEST_CACHE="${CMAKE_BINARY_DIR}/pocl")
  endforeach()
endif()
