# Installs, by component: library (shared library, headers, CMake package), static (the archive), python
# (what the Python package needs beside its own files; setup.py asks for it).
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_DATADIR}/cmake/fused_attention)
string(REGEX MATCH "^[0-9]+\\.[0-9]+" TORCH_MINOR ${TorchLite_VERSION})
set(isa_names ${FUSED_ATTENTION_ISAS} ${FUSED_ATTENTION_PAIRED_ISAS})
list(TRANSFORM isa_names REPLACE "(.+)" "\"\\1\"")
list(JOIN isa_names ", " isa_names)

configure_package_config_file(
  cmake/fused_attention-config.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/fused_attention-config.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/fused_attention-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
set(cuda_is_built False)
if(FUSED_ATTENTION_CUDA)
  set(cuda_is_built True)
endif()
configure_file(cmake/_build_info.py.in _build_info.py @ONLY)

install(TARGETS fused_attention EXPORT fused_attention LIBRARY COMPONENT library)
install(DIRECTORY include/ TYPE INCLUDE COMPONENT library)
install(
  EXPORT fused_attention
  FILE fused_attention-targets.cmake
  NAMESPACE fused_attention::
  DESTINATION ${package_dir}
  COMPONENT library)
install(
  FILES ${CMAKE_CURRENT_BINARY_DIR}/fused_attention-config.cmake
        ${CMAKE_CURRENT_BINARY_DIR}/fused_attention-config-version.cmake cmake/FindTorchLite.cmake
        cmake/KeepRegistration.cmake
  DESTINATION ${package_dir}
  COMPONENT library)
if(FUSED_ATTENTION_STATIC)
  install(TARGETS fused_attention_static EXPORT fused_attention_static ARCHIVE COMPONENT static)
  install(
    EXPORT fused_attention_static
    FILE fused_attention_static-targets.cmake
    NAMESPACE fused_attention::
    DESTINATION ${package_dir}
    COMPONENT static)
endif()
install(
  FILES ${CMAKE_CURRENT_BINARY_DIR}/_build_info.py
  DESTINATION .
  COMPONENT python
  EXCLUDE_FROM_ALL)
