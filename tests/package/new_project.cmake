# SPDX-License-Identifier: BSD-3-Clause
# Writes a project with the installed command, then does what its README says.
file(REMOVE_RECURSE ${PROJECT})
function(run_in folder)
  execute_process(COMMAND ${ARGN} WORKING_DIRECTORY ${folder} RESULT_VARIABLE result
                  OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    string(JOIN " " command ${ARGN})
    message(FATAL_ERROR "${command}: ${result}\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

run_in(${PREFIX} ${PREFIX}/bin/lockstep new ${PROJECT})
set(launcher "")
if(LAUNCHER)
  set(launcher -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER})
endif()
# The preset of README.md; nothing is optimized, for speed.
run_in(${PROJECT} ${CMAKE_COMMAND} --preset debug -DCMAKE_CXX_COMPILER=${COMPILER} ${launcher})
run_in(${PROJECT} ${CMAKE_COMMAND} --build --preset debug)
run_in(${PROJECT} ${CMAKE_CTEST_COMMAND} --preset debug)
run_in(${PROJECT} ${PREFIX}/bin/lockstep run -n 2 build/debug/train)
if(NOT output MATCHES "epoch 1: 469 steps.*accuracy 0[.]8")
  message(FATAL_ERROR "the new project trained with this output:\n${output}")
endif()
