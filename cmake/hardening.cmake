# What a distribution compiles its programs with, so that a fault in them ends the program instead of running a
# stranger's code: canaries on the stack, checked copies, no jump over a guard page, targets of indirect jumps that the
# processor checks, and tables of functions that are read-only once the program runs. docs/SECURITY.md lists them,
# tests/system/hardened.sh reads them in the built files. Sanitizers and fuzzers bring checks of their own, which these
# would hide.
if(SN_SANITIZE OR SN_FUZZ)
  return()
endif()
include(CheckCCompilerFlag)
include(CheckLinkerFlag)
include(CheckPIESupported)
check_pie_supported(LANGUAGES C) # with CMAKE_POSITION_INDEPENDENT_CODE programs lie at random addresses

set(sn_hardening -fstack-protector-strong -fstack-clash-protection -Wformat-security)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND sn_hardening -fcf-protection=full)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  list(APPEND sn_hardening -mbranch-protection=standard)
endif()
foreach(flag ${sn_hardening})
  string(MAKE_C_IDENTIFIER "SN_TAKES${flag}" known)
  check_c_compiler_flag(${flag} ${known})
  if(${known})
    add_compile_options(${flag})
  endif()
endforeach()
# Copies are checked where the compiler optimises; level 3 knows sizes that are computed at run time. glibc takes the
# highest level that it has.
if(NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
  add_compile_options(-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3)
endif()

foreach(flag -Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack)
  string(MAKE_C_IDENTIFIER "SN_LINKS${flag}" known)
  check_linker_flag(C ${flag} ${known})
  if(${known})
    add_link_options(${flag})
  endif()
endforeach()
