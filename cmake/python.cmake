# What the wheel of the Python package holds beside python/swarmnode (pyproject.toml): libswarm.so.0 in the package, and
# both programs where pip puts scripts. Only scikit-build-core asks for it.
if(SKBUILD)
  install(PROGRAMS $<TARGET_FILE:swarm_shared> DESTINATION swarmnode RENAME libswarm.so.0 COMPONENT python)
  install(TARGETS swarm swarm-node RUNTIME DESTINATION ${SKBUILD_SCRIPTS_DIR} COMPONENT python)
endif()
