# SPDX-License-Identifier: BSD-3-Clause
# Compiles wrong_arguments.cpp, and expects one static assertion for each mistake.
separate_arguments(includes UNIX_COMMAND ${INCLUDES})
list(TRANSFORM includes PREPEND -I)
execute_process(COMMAND ${COMPILER} -std=c++20 -fsyntax-only -w ${includes} ${SOURCE}
                RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(result EQUAL 0)
  message(FATAL_ERROR "the mistakes compile")
endif()
string(REGEX MATCHALL "error:" errors "${output}")
list(LENGTH errors count)
if(NOT count EQUAL 11)
  message(FATAL_ERROR "${count} errors for 11 mistakes:\n${output}")
endif()
foreach(part "DataParallel[(]net, {.replicas = 4}[)] splits"
             "after the module comes the group: the std"
             "after the module comes the group: DistributedDataParallel[(]net, group[)]"
             "options have names: DistributedDataParallel[(]net, group, {.bucket_cap_mb"
             "wrap a module: a holder"
             "reached by ->: model->module"
             "clip_grad_norm_ takes the wrapped model"
             "clip_grad_value_ takes the wrapped model"
             "fit[(][)] takes a range of batches"
             "the loss function of fit[(][)] returns a tensor")
  if(NOT output MATCHES "${part}")
    message(FATAL_ERROR "no error says '${part}':\n${output}")
  endif()
endforeach()
