# SPDX-License-Identifier: BSD-3-Clause
# cmake -DPRINTS=REGEX -P run_example.cmake -- COMMAND...: runs it, and fails unless it exits with 0
# and its output matches. ctest alone checks only one of the two.
set(command)
set(seen OFF)
foreach(i RANGE 1 ${CMAKE_ARGC})
  if(seen AND DEFINED CMAKE_ARGV${i})
    list(APPEND command ${CMAKE_ARGV${i}})
  elseif("${CMAKE_ARGV${i}}" STREQUAL "--")
    set(seen ON)
  endif()
endforeach()
execute_process(COMMAND ${command} RESULT_VARIABLE result
                OUTPUT_VARIABLE output ERROR_VARIABLE output)
message("${output}")
if(NOT result EQUAL 0)
  message(FATAL_ERROR "it ended with ${result}")
endif()
if(NOT output MATCHES "${PRINTS}")
  message(FATAL_ERROR "it printed no match of ${PRINTS}")
endif()
