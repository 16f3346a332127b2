# `cpack -G DEB` in the build folder makes swarm-node_VERSION_ARCHITECTURE.deb; with -DSN_DHT=ON the package is
# swarm-node-dht, is under GPL-3 as a whole, and replaces swarm-node. tests/system/test_package.sh installs it.
set(CPACK_PACKAGE_NAME ${SN_PACKAGE})
set(CPACK_PACKAGE_CONTACT "swarm-node maintainers <maintainers@swarm-node.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "distributed inference of large language models over volunteers' machines")
set(CPACK_PACKAGE_DESCRIPTION
"A model that is too big for one machine is cut into spans of transformer blocks. swarm-node serves a span on CPUs,
NVIDIA or Intel GPUs; swarm chains nodes until the whole model is covered, generates text, and continues without a
change of the text when a node fails. Connections are encrypted, announcements are signed.")
if(SN_DHT)
  set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${CPACK_PACKAGE_DESCRIPTION_SUMMARY} (with DHT, GPL-3)")
  string(APPEND CPACK_PACKAGE_DESCRIPTION "\n\nThis package also finds peers through OpenDHT (--dht). OpenDHT is under GPL-3, so these
programs as a whole are under GPL-3, not under Apache-2.0 as those of the package swarm-node.")
endif()
set(CPACK_GENERATOR DEB)
set(CPACK_STRIP_FILES ON)
set(CPACK_SET_DESTDIR ON) # the real prefix is known while the files are copied: install_generated.cmake writes it
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON) # dependencies: the packages of the libraries that the programs are linked with
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
if(SN_DHT)
  set(CPACK_DEBIAN_PACKAGE_PROVIDES swarm-node)
  set(CPACK_DEBIAN_PACKAGE_CONFLICTS swarm-node)
  set(CPACK_DEBIAN_PACKAGE_REPLACES swarm-node)
endif()
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA
  "${CMAKE_SOURCE_DIR}/packaging/conffiles;${CMAKE_SOURCE_DIR}/packaging/postinst;${CMAKE_SOURCE_DIR}/packaging/prerm;${CMAKE_SOURCE_DIR}/packaging/postrm")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
include(CPack)
