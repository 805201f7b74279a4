# SPDX-License-Identifier: BSD-3-Clause
# Finds the libraries that read images for ImageFolder. built_with.h tells data/image_file.cpp which
# were found; without one, its images are refused with an error that says so.

option(LOCKSTEP_WITH_IMAGES "Read JPEG and PNG files, if there are libjpeg and libpng" ON)
set(image_libraries "")
foreach(library JPEG PNG)
  set(LOCKSTEP_BUILT_WITH_${library} false)
  if(LOCKSTEP_WITH_IMAGES)
    find_package(${library})
  endif()
  if(LOCKSTEP_WITH_IMAGES AND ${library}_FOUND)
    string(TOLOWER ${library} format)
    target_sources(lockstep PRIVATE data/${format}_image.cpp)
    # The macros of the library's header must not reach other files.
    set_source_files_properties(data/${format}_image.cpp PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    target_link_libraries(lockstep PRIVATE ${library}::${library})
    list(APPEND image_libraries ${library})
    set(LOCKSTEP_BUILT_WITH_${library} true)
  endif()
endforeach()
# For the tests, and for the installed package, whose consumers link them.
string(JOIN " " LOCKSTEP_IMAGE_LIBRARIES ${image_libraries})
set(LOCKSTEP_IMAGE_LIBRARIES "${LOCKSTEP_IMAGE_LIBRARIES}" PARENT_SCOPE)
message(STATUS "images: ${LOCKSTEP_IMAGE_LIBRARIES}")
