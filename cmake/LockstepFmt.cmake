# SPDX-License-Identifier: BSD-3-Clause
# The target lockstep_fmt: the system's fmt, as a compiled library. As headers only it would be
# compiled into each of our files anew, which takes longer than most of them.
find_package(fmt REQUIRED)

# Newer libtorches ship the headers of another fmt among their own, which do not fit the system's
# library; a folder of its own brings the right ones to the front. They are reached by headers that
# say whose they are: a compiler does not warn of the system's.
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
