# Runs at installation and writes what programs on the C API are built with and is generated: swarm.pc with the paths of
# this installation, and the man pages of section 3. install.cmake sets the variables sn_*; sn_python is empty where the
# pages cannot be made.
set(generated "${sn_binary}/install")

file(WRITE "${generated}/swarm.pc" "prefix=${CMAKE_INSTALL_PREFIX}
includedir=\${prefix}/${sn_includedir}
libdir=\${prefix}/${sn_libdir}

Name: swarm
Description: language models over a swarm of nodes
Version: ${sn_version}
Cflags: -I\${includedir}
Libs: -L\${libdir} -lswarm
")
file(INSTALL "${generated}/swarm.pc" DESTINATION "${CMAKE_INSTALL_PREFIX}/${sn_libdir}/pkgconfig")

if(sn_python)
  file(REMOVE_RECURSE "${generated}/man3")
  execute_process(COMMAND "${sn_python}" "${sn_source}/scripts/api_man.py" "${sn_source}/include/swarm.h" ${sn_version}
    "${generated}/man3" RESULT_VARIABLE result)
  if(result)
    message(FATAL_ERROR "the man pages of include/swarm.h could not be made")
  endif()
  file(GLOB pages "${generated}/man3/*.3")
  file(INSTALL ${pages} DESTINATION "${CMAKE_INSTALL_PREFIX}/share/man/man3")
endif()
