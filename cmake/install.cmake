# What `make install` installs below a prefix: bin/nanovllm, the shared library, the headers that llm.h needs, the package that
# find_package(nanovllm) reads, the data set of `nanovllm bench`, and completion for bash.
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
install(FILES bench/nanovllm_256.jsonl DESTINATION ${CMAKE_INSTALL_DATADIR}/nanovllm)
install(FILES apps/completion.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME nanovllm)
