# SPDX-License-Identifier: BSD-3-Clause
# The install rules: public headers, the static library, and the CMake package for find_package(lockstep).

include(CMakePackageConfigHelpers)

set(_lockstep_package ${CMAKE_INSTALL_LIBDIR}/cmake/lockstep)
install(TARGETS lockstep EXPORT lockstep ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
        FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT lockstep NAMESPACE lockstep:: FILE lockstepTargets.cmake
        DESTINATION ${_lockstep_package})
configure_package_config_file(
  ${CMAKE_CURRENT_LIST_DIR}/lockstepConfig.cmake.in ${PROJECT_BINARY_DIR}/lockstepConfig.cmake
  INSTALL_DESTINATION ${_lockstep_package})
# Before 1.0 every minor version may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/lockstepConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/lockstepConfig.cmake
              ${PROJECT_BINARY_DIR}/lockstepConfigVersion.cmake
              ${CMAKE_CURRENT_LIST_DIR}/LockstepCudaTorch.cmake
              ${CMAKE_CURRENT_LIST_DIR}/LockstepTorch.cmake
        DESTINATION ${_lockstep_package})
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
