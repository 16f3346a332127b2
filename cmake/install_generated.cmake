# Runs at installation and writes what is generated: the systemd unit with the paths of this installation, the node's
# configuration, and man pages and bash completion, which the programs print from their option tables. install.cmake
# sets the variables sn_*. file(INSTALL) honours DESTDIR.
set(generated "${sn_binary}/install")

# What a program prints when it is called with arguments, as a file of the installation.
function(install_output file destination)
  execute_process(COMMAND ${ARGN} OUTPUT_FILE "${generated}/${file}" RESULT_VARIABLE result)
  if(result)
    message(FATAL_ERROR "'${ARGN}' failed: build the programs first")
  endif()
  file(INSTALL "${generated}/${file}" DESTINATION "${CMAKE_INSTALL_PREFIX}/${destination}")
endfunction()

file(MAKE_DIRECTORY "${generated}/completion")
foreach(program swarm swarm-node)
  install_output(${program}.1 share/man/man1 "${sn_binary}/${program}" --help=man)
  install_output(completion/${program} share/bash-completion/completions "${sn_binary}/${program}" --help=completion)
endforeach()
file(GLOB_RECURSE commands "${sn_source}/cli/cmd_*.c")
foreach(source ${commands})
  string(REGEX REPLACE ".*/cmd_(.*)\\.c" "\\1" command "${source}")
  install_output(swarm-${command}.1 share/man/man1 "${sn_binary}/swarm" ${command} --help=man)
endforeach()

set(etc "${CMAKE_INSTALL_PREFIX}/etc")
if(CMAKE_INSTALL_PREFIX STREQUAL "/usr")
  set(etc /etc)
endif()
file(READ "${sn_source}/configs/swarm-node.service" unit)
string(REPLACE "/usr/local/bin/" "${CMAKE_INSTALL_PREFIX}/${sn_bindir}/" unit "${unit}")
string(REPLACE "/etc/swarm/" "${etc}/swarm/" unit "${unit}")
file(WRITE "${generated}/swarm-node.service" "${unit}")
file(INSTALL "${generated}/swarm-node.service" DESTINATION "${CMAKE_INSTALL_PREFIX}/lib/systemd/system")
if(EXISTS "$ENV{DESTDIR}${etc}/swarm/node.conf")
  message(STATUS "Kept: $ENV{DESTDIR}${etc}/swarm/node.conf (the new one is in ${CMAKE_INSTALL_PREFIX}/share/swarm-node)")
else()
  file(INSTALL "${sn_source}/configs/node.conf" DESTINATION "${etc}/swarm")
endif()
