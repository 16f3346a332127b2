# sn_pages: the files of gateway/pages inside a library that swarm serve and swarm-node share (gateway/pages/pages.h).
file(GLOB sn_page_files CONFIGURE_DEPENDS gateway/pages/*.html gateway/pages/*.css gateway/pages/*.js gateway/pages/*.svg)
set(sn_pages_table ${CMAKE_BINARY_DIR}/pages/pages_embedded.c)
add_custom_command(OUTPUT ${sn_pages_table}
  COMMAND ${CMAKE_COMMAND} -DOUT=${sn_pages_table} -DFOLDER=${CMAKE_SOURCE_DIR}/gateway/pages -P ${CMAKE_SOURCE_DIR}/cmake/embed_pages.cmake
  DEPENDS ${sn_page_files} ${CMAKE_SOURCE_DIR}/cmake/embed_pages.cmake VERBATIM)
add_library(sn_pages STATIC gateway/pages/pages.c ${sn_pages_table})
