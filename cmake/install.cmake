# What `cmake --install` copies, and where to. The components (programs, library, development) become Debian packages
# (cmake/package.cmake). Paths follow GNUInstallDirs; below the prefix (default /usr/local):
#     bin/                       swarm, swarm-node
#     lib/                       libswarm.so.0, which programs that use the C API load; for building them libswarm.so,
#                                pkgconfig/swarm.pc, and include/swarm.h
#     lib/systemd/system/        swarm-node.service, with the paths of this installation
#     share/swarm-node/          examples: configuration files, a launcher over ssh, a Slurm job, containers
#     share/doc/swarm-node/      README, changelog, licence, the documents of docs/
#     share/man/man1/            man pages, made from the option tables of the programs
#     share/man/man3/            man pages of the C API, made from the comments of include/swarm.h (needs scdoc, python3)
#     share/bash-completion/     completion, made from the same tables
#     etc/swarm/node.conf        the node's configuration (/etc/swarm for the prefix /usr); an existing file is kept
include(GNUInstallDirs)
# The names of the Debian packages, and of the folders of their documents.
set(SN_PACKAGE swarm-node)
set(SN_LIBRARY_PACKAGE libswarm0)
set(SN_DEVELOPMENT_PACKAGE libswarm-dev)
if(SN_DHT)
  set(SN_PACKAGE swarm-node-dht)
  set(SN_LIBRARY_PACKAGE libswarm0-dht)
  set(SN_DEVELOPMENT_PACKAGE libswarm-dht-dev)
endif()
set(sn_doc ${CMAKE_INSTALL_DATADIR}/doc/${SN_PACKAGE})
set(sn_share ${CMAKE_INSTALL_DATADIR}/swarm-node)

install(TARGETS swarm swarm-node RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)
install(FILES configs/node.conf configs/client.conf configs/slurm.sbatch configs/compose.yaml configs/kubernetes.yaml
        DESTINATION ${sn_share} COMPONENT programs)
install(PROGRAMS configs/launch.sh DESTINATION ${sn_share} COMPONENT programs)
file(GLOB sn_documents CONFIGURE_DEPENDS docs/*.md docs/*.svg)
install(FILES README.md CHANGELOG.md DESTINATION ${sn_doc} COMPONENT programs)
install(FILES ${sn_documents} DESTINATION ${sn_doc}/docs COMPONENT programs)
install(FILES packaging/${SN_PACKAGE}.copyright DESTINATION ${sn_doc} RENAME copyright COMPONENT programs)

# The prefix is known only at installation (cmake --install --prefix, cpack), so scripts write what depends on it.
set(sn_paths "set(sn_source \"${CMAKE_SOURCE_DIR}\")
set(sn_binary \"${CMAKE_BINARY_DIR}\")
set(sn_version \"${PROJECT_VERSION}\")
set(sn_bindir \"${CMAKE_INSTALL_BINDIR}\")
set(sn_libdir \"${CMAKE_INSTALL_LIBDIR}\")
set(sn_includedir \"${CMAKE_INSTALL_INCLUDEDIR}\")")
install(CODE "${sn_paths}" COMPONENT programs)
install(SCRIPT cmake/install_generated.cmake COMPONENT programs)

if(TARGET swarm_shared)
  install(TARGETS swarm_shared LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library
    NAMELINK_COMPONENT development)
  install(FILES packaging/${SN_PACKAGE}.copyright DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${SN_LIBRARY_PACKAGE}
    RENAME copyright COMPONENT library)
  install(FILES include/swarm.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)
  file(GLOB sn_examples CONFIGURE_DEPENDS examples/*.c)
  install(FILES ${sn_examples} DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${SN_DEVELOPMENT_PACKAGE}/examples
    COMPONENT development)
  install(FILES packaging/${SN_PACKAGE}.copyright DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${SN_DEVELOPMENT_PACKAGE}
    RENAME copyright COMPONENT development)
  find_program(SN_SCDOC scdoc)
  find_program(SN_PYTHON python3)
  if(NOT SN_SCDOC OR NOT SN_PYTHON)
    message(STATUS "No man pages of the C API: they need scdoc and python3")
  endif()
  install(CODE "${sn_paths}
set(sn_python \"$<$<BOOL:${SN_SCDOC}>:${SN_PYTHON}>\")" COMPONENT development)
  install(SCRIPT cmake/install_development.cmake COMPONENT development)
endif()
