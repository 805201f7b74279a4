# SPDX-License-Identifier: BSD-3-Clause
# The target lockstep_fmt: the system's fmt, as a compiled library. As headers only it would be
# compiled into each of our files anew, which takes longer than most of them.
find_package(fmt REQUIRED)

# Newer libtorches ship the headers of another fmt among their own, which do not fit the system's
# library; a folder of its own brings the right ones to the front.
get_target_property(fmt_headers fmt::fmt INTERFACE_INCLUDE_DIRECTORIES)
list(GET fmt_headers 0 fmt_headers)
set(fmt_in_front ${PROJECT_BINARY_DIR}/fmt)
file(MAKE_DIRECTORY ${fmt_in_front})
file(CREATE_LINK ${fmt_headers}/fmt ${fmt_in_front}/fmt SYMBOLIC)

add_library(lockstep_fmt INTERFACE)
target_include_directories(lockstep_fmt INTERFACE ${fmt_in_front})
target_link_libraries(lockstep_fmt INTERFACE fmt::fmt)
