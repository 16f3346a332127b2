# What the wheel of the Python package holds beside python/swarmnode (pyproject.toml), all of it in the package:
# libswarm.so.0, bin/ with the programs, lib/ with the libraries that they need, licences/. Where pip puts scripts lie two
# that start the programs. Only scikit-build-core asks for it.
if(SKBUILD)
  option(SN_BUNDLE "the wheel holds the libraries that libswarm needs; else it uses the system's" ON)
  install(PROGRAMS $<TARGET_FILE:swarm_shared> DESTINATION swarmnode RENAME libswarm.so.0 COMPONENT python)
  install(CODE "execute_process(COMMAND \"${CMAKE_STRIP}\" --strip-unneeded \"\${CMAKE_INSTALL_PREFIX}/swarmnode/libswarm.so.0\")"
    COMPONENT python)
  install(TARGETS swarm swarm-node RUNTIME DESTINATION swarmnode/bin COMPONENT python)
  install(FILES LICENSE DESTINATION swarmnode/licences COMPONENT python)
  foreach(program swarm swarm-node)
    install(PROGRAMS python/program.py DESTINATION ${SKBUILD_SCRIPTS_DIR} RENAME ${program} COMPONENT python)
  endforeach()
  if(SN_BUNDLE)
    # libstdc++ and libgcc stay the system's, as in every wheel: a process has one of each, as new as any of its parts needs.
    install(CODE "set(package \"\${CMAKE_INSTALL_PREFIX}/swarmnode\")
      execute_process(COMMAND \"${Python_EXECUTABLE}\" \"${CMAKE_SOURCE_DIR}/scripts/bundle.py\" --lib \${package}/lib --licences \${package}/licences
        --leave libstdc++.so.6 libgcc_s.so.1 -- \${package}/libswarm.so.0 \${package}/bin/swarm \${package}/bin/swarm-node
        COMMAND_ERROR_IS_FATAL ANY)" COMPONENT python)
  endif()
endif()
