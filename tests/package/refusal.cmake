# SPDX-License-Identifier: BSD-3-Clause
# Configures the consumer with a libtorch that Lockstep was not built with, and expects the error
# that names both versions.
execute_process(
  COMMAND ${CMAKE_COMMAND} -S ${SOURCE} -B ${BINARY} --fresh -G Ninja
          -DCMAKE_CXX_COMPILER=${COMPILER} "-DCMAKE_PREFIX_PATH=${PREFIX};${OTHER_TORCH}"
  RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
string(REGEX REPLACE "[ \n]+" " " output "${output}")
if(result EQUAL 0)
  message(FATAL_ERROR "the consumer was configured with a wrong libtorch:\n${output}")
endif()
foreach(part "uses libtorch 9.8.7 " "built with libtorch ${TORCH_VERSION} ")
  if(NOT output MATCHES "${part}")
    message(FATAL_ERROR "the error does not say '${part}':\n${output}")
  endif()
endforeach()
