# What `cmake --install` copies, and where to. Paths follow GNUInstallDirs; below the prefix (default /usr/local):
#     bin/                       swarm, swarm-node
#     lib/systemd/system/        swarm-node.service, with the paths of this installation
#     share/swarm-node/          examples: configuration files, a launcher over ssh, a Slurm job
#     share/doc/swarm-node/      README, changelog, licence, the documents of docs/
#     share/man/man1/            man pages, made from the option tables of the programs
#     share/bash-completion/     completion, made from the same tables
#     etc/swarm/node.conf        the node's configuration (/etc/swarm for the prefix /usr); an existing file is kept
include(GNUInstallDirs)
set(SN_PACKAGE swarm-node) # the name of the Debian package, and of the folder of its documents
if(SN_DHT)
  set(SN_PACKAGE swarm-node-dht)
endif()
set(sn_doc ${CMAKE_INSTALL_DATADIR}/doc/${SN_PACKAGE})
set(sn_share ${CMAKE_INSTALL_DATADIR}/swarm-node)

install(TARGETS swarm swarm-node RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(FILES configs/node.conf configs/client.conf configs/slurm.sbatch DESTINATION ${sn_share})
install(PROGRAMS configs/launch.sh DESTINATION ${sn_share})
file(GLOB sn_documents CONFIGURE_DEPENDS docs/*.md docs/*.svg)
install(FILES README.md CHANGELOG.md DESTINATION ${sn_doc})
install(FILES ${sn_documents} DESTINATION ${sn_doc}/docs)
install(FILES packaging/${SN_PACKAGE}.copyright DESTINATION ${sn_doc} RENAME copyright)

# The prefix is known only at installation (cmake --install --prefix, cpack), so a script writes what depends on it.
install(CODE "set(sn_source \"${CMAKE_SOURCE_DIR}\")
set(sn_binary \"${CMAKE_BINARY_DIR}\")
set(sn_bindir \"${CMAKE_INSTALL_BINDIR}\")")
install(SCRIPT cmake/install_generated.cmake)
