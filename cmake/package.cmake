# `cpack -G DEB` in the build folder makes three packages: swarm-node_VERSION_ARCHITECTURE.deb with the programs, libswarm0
# with the library of the C API, and libswarm-dev to build programs with it. With -DSN_DHT=ON they are swarm-node-dht,
# libswarm0-dht and libswarm-dht-dev, are under GPL-3 as a whole, and replace the others. tests/system/test_package.sh
# installs them.
set(CPACK_PACKAGE_NAME ${SN_PACKAGE})
set(CPACK_PACKAGE_CONTACT "swarm-node maintainers <maintainers@swarm-node.invalid>")
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "") # each component has its own
set(CPACK_GENERATOR DEB)
set(CPACK_STRIP_FILES ON)
set(CPACK_SET_DESTDIR ON) # the real prefix is known while the files are copied: install_generated.cmake writes it
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON) # dependencies: the packages of the libraries that the programs are linked with
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL programs)
if(TARGET swarm_shared)
  list(APPEND CPACK_COMPONENTS_ALL library development)
endif()

# sn_package(COMPONENT name section summary description): the Debian package of a component.
macro(sn_package component name section summary description)
  set(CPACK_DEBIAN_${component}_PACKAGE_NAME ${name})
  set(CPACK_DEBIAN_${component}_PACKAGE_SECTION ${section})
  if(SN_DHT)
    string(REPLACE -dht "" sn_replaced ${name})
    set(CPACK_COMPONENT_${component}_DESCRIPTION "${summary} (with DHT, GPL-3)\n${description}

This package also finds peers through OpenDHT. OpenDHT is under GPL-3, so this build as a whole is under GPL-3, not
under Apache-2.0 as the package ${sn_replaced}.")
    foreach(relation PROVIDES CONFLICTS REPLACES)
      set(CPACK_DEBIAN_${component}_PACKAGE_${relation} ${sn_replaced})
    endforeach()
  else()
    set(CPACK_COMPONENT_${component}_DESCRIPTION "${summary}\n${description}")
  endif()
endmacro()
sn_package(PROGRAMS ${SN_PACKAGE} science "distributed inference of large language models over volunteers' machines"
"A model that is too big for one machine is cut into spans of transformer blocks. swarm-node serves a span on CPUs,
NVIDIA or Intel GPUs; swarm chains nodes until the whole model is covered, generates text, and continues without a
change of the text when a node fails. Connections are encrypted, announcements are signed.")
sn_package(LIBRARY ${SN_LIBRARY_PACKAGE} libs "language models over a swarm of nodes, as a C library"
"The library that programs on the C API of swarm-node load: it connects to nodes, generates text over them, computes
hidden states and gradients through remote blocks, and trains adapters.")
sn_package(DEVELOPMENT ${SN_DEVELOPMENT_PACKAGE} libdevel "language models over a swarm of nodes, to build programs with"
"Header, pkg-config file, man pages and examples of libswarm, the C API of swarm-node.")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "${SN_LIBRARY_PACKAGE} (= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_PROGRAMS_PACKAGE_CONTROL_EXTRA
  "${CMAKE_SOURCE_DIR}/packaging/conffiles;${CMAKE_SOURCE_DIR}/packaging/postinst;${CMAKE_SOURCE_DIR}/packaging/prerm;${CMAKE_SOURCE_DIR}/packaging/postrm")
include(CPack)
