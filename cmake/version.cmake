# What `--version --json` says of this build: build_info.inc, a JSON text without its braces, for base/version.c.
function(sn_json_bool out)
  foreach(condition ${ARGN})
    if(NOT ${condition})
      set(${out} false PARENT_SCOPE)
      return()
    endif()
  endforeach()
  set(${out} true PARENT_SCOPE)
endfunction()
sn_json_bool(sn_cuda SN_CUDA SN_NVCC)
sn_json_bool(sn_xpu SN_XPU)
sn_json_bool(sn_dht SN_DHT)
sn_json_bool(sn_amx SN_ASSEMBLES_AMX)

# sn_used(name version licence): a library that the programs are linked with, and its licence as an SPDX expression.
set(sn_libraries "")
function(sn_used name version licence)
  list(APPEND sn_libraries "{\"name\": \"${name}\", \"version\": \"${version}\", \"licence\": \"${licence}\"}")
  set(sn_libraries "${sn_libraries}" PARENT_SCOPE)
endfunction()
sn_used(libsodium "${SODIUM_VERSION}" ISC)
sn_used(msgpack-c "${MSGPACK_VERSION}" BSL-1.0)
sn_used(openssl "${OPENSSL_VERSION}" Apache-2.0)
sn_used(jansson "${JANSSON_VERSION}" MIT)
sn_used(libmicrohttpd "${MICROHTTPD_VERSION}" LGPL-2.1-or-later)
sn_used(pcre2 "${PCRE2_VERSION}" BSD-3-Clause)
sn_used(utf8proc "${UTF8PROC_VERSION}" "MIT AND Unicode-DFS-2016")
sn_used(libedit "${EDIT_VERSION}" BSD-3-Clause)
sn_used(curl "${CURL_VERSION_STRING}" curl)
if(SN_ASKS_ROUTERS)
  sn_used(miniupnpc "${MINIUPNPC_VERSION}" BSD-3-Clause)
  sn_used(natpmp unknown BSD-3-Clause) # it does not tell its version
endif()
if(SN_XPU)
  sn_used(libze_loader "${ZE_VERSION}" MIT)
endif()
set(sn_licence Apache-2.0)
if(SN_DHT)
  sn_used(opendht "${OPENDHT_VERSION}" GPL-3.0-or-later)
  set(sn_licence GPL-3.0-or-later) # of the programs as a whole
endif()
list(JOIN sn_libraries ", " sn_libraries)

set(sn_info "\"licence\": \"${sn_licence}\", \"build\": {\"type\": \"${CMAKE_BUILD_TYPE}\", \"compiler\": \"\
${CMAKE_C_COMPILER_ID} ${CMAKE_C_COMPILER_VERSION}\", \"processor\": \"${CMAKE_SYSTEM_PROCESSOR}\", \"sanitizers\": \"\
${SN_SANITIZE_FLAG}\", \"cuda\": ${sn_cuda}, \"xpu\": ${sn_xpu}, \"dht\": ${sn_dht}, \"amx\": ${sn_amx}}, \
\"libraries\": [${sn_libraries}]")
string(REPLACE "\"" "\\\"" sn_info_c "${sn_info}")
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/build_info.inc CONTENT "\"${sn_info_c}\"\n" @ONLY)
set_source_files_properties(base/version.c PROPERTIES COMPILE_OPTIONS -I${CMAKE_BINARY_DIR}/generated
                            OBJECT_DEPENDS ${CMAKE_BINARY_DIR}/generated/build_info.inc)
