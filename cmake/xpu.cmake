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

# sn_xpu_module(name source flag...): compiles ${name}.spv in the build folder, for the environment SN_XPU_ENVIRONMENT. The device driver optimises the modules;
# clang's own passes are disabled, because spirv-val refuses some of their output.
set(SN_XPU_SPIRV ${CMAKE_BINARY_DIR}/xpu)
set(SN_XPU_MODULES "")
set(SN_XPU_ENVIRONMENT opencl1.2)
macro(sn_xpu_module name source)
  add_custom_command(OUTPUT ${SN_XPU_SPIRV}/${name}.spv
    COMMAND ${CMAKE_COMMAND} -E make_directory ${SN_XPU_SPIRV}/emulated
    COMMAND ${SN_OCL_CLANG} -target spir64 -x cl -cl-std=CL1.2 -O2 -Xclang -disable-llvm-passes -Wall -Werror -I${CMAKE_SOURCE_DIR} ${ARGN}
            -emit-llvm -c ${CMAKE_SOURCE_DIR}/device/xpu/${source} -o ${SN_XPU_SPIRV}/${name}.bc
    COMMAND ${SN_LLVM_SPIRV} --spirv-max-version=1.2 --spirv-ext=+SPV_KHR_integer_dot_product ${SN_XPU_SPIRV}/${name}.bc -o ${SN_XPU_SPIRV}/${name}.spv
    COMMAND ${SN_SPIRV_VAL} --target-env ${SN_XPU_ENVIRONMENT} ${SN_XPU_SPIRV}/${name}.spv
    DEPENDS ${CMAKE_SOURCE_DIR}/device/xpu/${source} ${CMAKE_SOURCE_DIR}/device/xpu/formulas.clh
      ${CMAKE_SOURCE_DIR}/device/xpu/planes.clh ${CMAKE_SOURCE_DIR}/device/codebooks.inc.h ${CMAKE_SOURCE_DIR}/device/xpu/latent.clh ${CMAKE_SOURCE_DIR}/device/xpu/delta.clh
      ${CMAKE_SOURCE_DIR}/device/xpu/chosen.clh VERBATIM)
  list(APPEND SN_XPU_MODULES ${SN_XPU_SPIRV}/${name}.spv)
endmacro()

# The weight forms of xpu_private.h, each with the macros that planes.clh needs for it: those of quantised types are the rows
# of device/quant.h.
file(READ device/quant.h SN_QUANT_ROWS)
string(REGEX MATCHALL "\n    X\\([A-Z][^)]*" SN_QUANT_ROWS "${SN_QUANT_ROWS}")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS device/quant.h)
if(SN_XPU)
  sn_xpu_module(block block.cl)
  sn_xpu_module(grad grad.cl)
  sn_xpu_module(kv_f32 kv.cl -DKV=0)
  sn_xpu_module(kv_f16 kv.cl -DKV=1)
  sn_xpu_module(kv_q8 kv.cl -DKV=2)
  foreach(form F32,32 F16,16 BF16,17 F8_E4M3,9 F8_E5M2,10 FLOAT4,18 ${SN_QUANT_ROWS})
    string(REGEX REPLACE "^\n *X.| " "" form "${form}")
    string(REPLACE "," ";" values "${form}")
    list(POP_FRONT values name)
    set(flags "")
    foreach(macro LOW HIGH SCALE=SCALE_ SCALE_BYTES SUPER ZERO TABLE GROUPS ENTRY BOOK INDEX_BITS SIGN_BITS HALVINGS)
      if(NOT values STREQUAL "")
        list(POP_FRONT values value)
        if(NOT macro MATCHES "=")
          string(APPEND macro "=")
        endif()
        list(APPEND flags -D${macro}${value})
      endif()
    endforeach()
    sn_xpu_module(linear_${name} linear.cl ${flags} -DSUFFIX=${name})
    if(form MATCHES ",.*,") # the quantised ones
      sn_xpu_module(linear_dot_${name} linear_dot.cl ${flags} -DSUFFIX=${name})
      foreach(width 8 16) # and once more for the test driver, which has neither matrix units nor subgroups
        set(kernel linear_xmx${width}_${name})
        set(SN_XPU_ENVIRONMENT opencl2.2) # subgroups of a size: SPIR-V 1.1
        sn_xpu_module(${kernel} linear_xmx.cl ${flags} -DWIDTH=${width} -DKERNEL=${kernel})
        set(SN_XPU_ENVIRONMENT opencl1.2)
        if(SN_TESTS)
          sn_xpu_module(emulated/${kernel} linear_xmx.cl ${flags} -DWIDTH=${width} -DKERNEL=${kernel} -DEMULATED)
        endif()
      endforeach()
    endif()
  endforeach()
  set_source_files_properties(device/xpu/spirv.c PROPERTIES
    COMPILE_DEFINITIONS "SN_XPU_SPIRV=\"${SN_XPU_SPIRV}\"" OBJECT_DEPENDS "${SN_XPU_MODULES}")
  target_compile_definitions(sn_device PUBLIC SN_HAVE_XPU)
  target_link_libraries(sn_device PUBLIC PkgConfig::ZE ${CMAKE_DL_LIBS})
else()
  message(STATUS "No XPU backend: it needs libze-dev, clang-15, llvm-spirv-15 and spirv-tools")
  get_target_property(sources sn_device SOURCES)
  list(FILTER sources EXCLUDE REGEX "device/xpu/")
  set_property(TARGET sn_device PROPERTY SOURCES ${sources})
endif()

# The test driver: Level Zero over OpenCL on the CPU; the real loader loads it. Without OpenCL its tests are skipped and
# name the missing package.
pkg_check_modules(OPENCL IMPORTED_TARGET OpenCL)
if(SN_XPU AND OPENCL_FOUND AND SN_TESTS)
  file(GLOB driver CONFIGURE_DEPENDS tests/support/ze_driver/*.c)
  list(FILTER driver EXCLUDE REGEX "/use\\.c$") # of the tests
  add_library(ze_test_driver SHARED ${driver})
  target_link_libraries(ze_test_driver PRIVATE PkgConfig::OPENCL Threads::Threads)
  target_include_directories(ze_test_driver PRIVATE ${ZE_INCLUDE_DIRS})
  target_compile_definitions(ze_test_driver PRIVATE SN_LLVM_SPIRV="${SN_LLVM_SPIRV}" SN_XPU_EMULATED="${SN_XPU_SPIRV}/emulated"
    CL_TARGET_OPENCL_VERSION=300)
  set_target_properties(ze_test_driver PROPERTIES C_VISIBILITY_PRESET hidden)
  target_sources(test_emulated PRIVATE tests/support/ze_driver/use.c)
  target_link_libraries(test_emulated PRIVATE ${CMAKE_DL_LIBS})
  target_compile_definitions(test_emulated PRIVATE SN_ZE_TEST_DRIVER="$<TARGET_FILE:ze_test_driver>"
    SN_ZE_TEST_CACHE="${CMAKE_BINARY_DIR}/pocl")
  foreach(program test_emulated emulated_swarm emulated_swarm-node)
    add_dependencies(${program} ze_test_driver)
  endforeach()
endif()
