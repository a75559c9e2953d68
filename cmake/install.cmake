# What `make install` installs below a prefix: bin/nanovllm, the shared library, the headers that llm.h needs, what
# find_package(nanovllm) and pkg-config read, the manual page, and completions for three shells.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/nanovllm)
install(TARGETS nanovllm_cli RUNTIME)
if(NANOVLLM_CUDA)
  install(TARGETS nanovllm_cuda LIBRARY)
endif()
install(TARGETS nanovllm_shared EXPORT nanovllm LIBRARY FILE_SET HEADERS)
install(EXPORT nanovllm FILE nanovllmConfig.cmake NAMESPACE nanovllm:: DESTINATION ${package_dir})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/nanovllmConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/nanovllmConfigVersion.cmake DESTINATION ${package_dir})

# Paths in it begin at its own folder, so that the installation can be moved.
set(pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH prefix_from_pc /${pkgconfig_dir} /)
string(REGEX REPLACE "/$" "" prefix_from_pc ${prefix_from_pc})
configure_file(cmake/nanovllm.pc.in ${CMAKE_BINARY_DIR}/nanovllm.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/nanovllm.pc DESTINATION ${pkgconfig_dir})

set(from apps/completions)
install(FILES ${from}/nanovllm.bash RENAME nanovllm DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
install(FILES ${from}/nanovllm.zsh RENAME _nanovllm DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
install(FILES ${from}/nanovllm.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)

# The manual page is made from the help of the binary that is installed.
find_package(Python3 COMPONENTS Interpreter)
if(Python3_FOUND)
  set(script ${CMAKE_SOURCE_DIR}/scripts/man_page.py)
  install(CODE "execute_process(COMMAND ${Python3_EXECUTABLE} ${script} $<TARGET_FILE:nanovllm_cli>
                                OUTPUT_FILE ${CMAKE_BINARY_DIR}/nanovllm.1 COMMAND_ERROR_IS_FATAL ANY)")
  install(FILES ${CMAKE_BINARY_DIR}/nanovllm.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
endif()
