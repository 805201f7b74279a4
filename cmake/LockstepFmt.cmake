# SPDX-License-Identifier: BSD-3-Clause
# The target lockstep_fmt: the system's fmt, as a compiled library. A header-only fmt would be
# recompiled in each of our files, which takes longer than most of the files themselves.
find_package(fmt REQUIRED)

# Newer libtorch versions ship another fmt's headers, which do not match the system's library. So a
# folder of forwarding headers, searched first, includes the system's fmt. The forwarding headers
# are marked as system headers so that the compiler does not warn about them.
get_target_property(fmt_headers fmt::fmt INTERFACE_INCLUDE_DIRECTORIES)
list(GET fmt_headers 0 fmt_headers)
set(fmt_in_front ${PROJECT_BINARY_DIR}/fmt_in_front)
file(GLOB headers RELATIVE ${fmt_headers} ${fmt_headers}/fmt/*.h)
foreach(header IN LISTS headers)
  file(CONFIGURE OUTPUT ${fmt_in_front}/${header} @ONLY
    CONTENT "#pragma GCC system_header\n#include \"@fmt_headers@/@header@\"\n")
endforeach()

add_library(lockstep_fmt INTERFACE)
target_include_directories(lockstep_fmt INTERFACE ${fmt_in_front})
target_link_libraries(lockstep_fmt INTERFACE fmt::fmt)
