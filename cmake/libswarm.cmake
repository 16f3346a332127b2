# libswarm.so.0: the C API of include/swarm.h, of the same objects as the program `swarm`. Nothing but swarm_* is visible.
file(WRITE ${CMAKE_BINARY_DIR}/libswarm.c "")
add_library(swarm_shared SHARED ${CMAKE_BINARY_DIR}/libswarm.c)
target_link_libraries(swarm_shared PRIVATE -Wl,--whole-archive sn_client -Wl,--no-whole-archive)
target_link_options(swarm_shared PRIVATE -Wl,--version-script=${CMAKE_SOURCE_DIR}/cmake/swarm.map)
target_include_directories(swarm_shared INTERFACE ${CMAKE_SOURCE_DIR}/include)
set_target_properties(swarm_shared PROPERTIES OUTPUT_NAME swarm VERSION ${PROJECT_VERSION} SOVERSION 0
                      LINK_DEPENDS ${CMAKE_SOURCE_DIR}/cmake/swarm.map LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})

# Two functions with equal instructions stay two: else one of them has no debug information, and scripts/record_abi.sh
# does not see its parameters.
file(GLOB api CONFIGURE_DEPENDS client/api/*.c)
set_property(SOURCE ${api} APPEND PROPERTY COMPILE_OPTIONS $<$<C_COMPILER_ID:GNU>:-fno-ipa-icf>)
